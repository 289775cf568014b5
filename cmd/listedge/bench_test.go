package main

import (
	"strings"
	"testing"
)

func TestBench(t *testing.T) {
	t.Parallel()
	url := database(t)
	workspace, key := workspaceWithKey(t, url)
	n := startNode(t, url)
	said := command(t, "bench", "--url", n.url+"/v1/items?limit=7", "--key", key, "--duration", "300ms", "--connections", "2")
	for _, want := range []string{" a second", "200 OK  hit; detail=memory", "p99 ", "up to", "█"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is missing:\n%s", want, said)
		}
	}
	limited := newKeyFor(t, url, workspace, "--rate", "1", "--burst", "1")
	p := start(t, "bench", "--url", n.url+"/v1/items", "--key", limited, "--duration", "300ms", "--connections", "1")
	if <-p.ended; p.code != exitFailed || !strings.Contains(p.out.String(), "429 Too Many Requests") ||
		!strings.Contains(p.err.String(), "this measured refusals") || !strings.Contains(p.err.String(), "429 Too Many Requests: give a key with a higher limit") {
		t.Errorf("exit %d: %s%s", p.code, p.out.String(), p.err.String())
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--key", key, "--url", "http://127.0.0.1:1/"}, exitFailed, "no answer"},
		{[]string{"--key", "lk_none", "--url", n.url + "/v1/items"}, exitFailed, ": give a key that may read this"},
		{[]string{"--key", key, "--url", n.url + "/v1/items?nonsense=1"}, exitFailed, "400 Bad Request"},
		{[]string{"--key", key, "--url", "ftp://a"}, exitUsage, "--url"},
		{[]string{"--key", key, "--duration", "0s"}, exitUsage, "--duration"},
		{[]string{"--url", n.url}, exitUsage, "--key"},
	} {
		p := start(t, append([]string{"bench", "--duration", "200ms"}, c.args...)...)
		if <-p.ended; p.code != c.code || !strings.Contains(p.err.String(), c.want) {
			t.Errorf("%v: exit %d: %s", c.args, p.code, p.err.String())
		}
	}
}

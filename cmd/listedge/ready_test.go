package main

import (
	"strings"
	"testing"
)

func TestReadySaysWhatTheNodeSays(t *testing.T) {
	t.Parallel()
	n := startNode(t, database(t))
	if said := command(t, "ready", "--admin", n.admin); said != "ready\n" {
		t.Error(said)
	}
	lost := launchNode(t, "postgres://127.0.0.1:1/none")
	for admin, want := range map[string]string{
		lost.admin:           "not ready: postgres: ",
		"http://127.0.0.1:1": "ask the node: ",
		n.url:                "ask the node: /readyz is not that of a node",
	} {
		p := start(t, "ready", "--admin", admin)
		if <-p.ended; p.code != exitFailed || !strings.Contains(p.err.String(), want) {
			t.Errorf("%s: exit %d: %s", admin, p.code, p.err.String())
		}
	}
}

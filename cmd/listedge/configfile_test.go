package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfigFile(t *testing.T) {
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "listedge.yaml")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	printed := func(args ...string) string {
		t.Helper()
		return command(t, append([]string{"serve", "--print-config", "--database-url", "postgres://u:secret@h/d"}, args...)...)
	}
	has := func(printed string, lines ...string) {
		t.Helper()
		for _, line := range lines {
			if !strings.Contains("\n"+printed, "\n"+line+"\n") {
				t.Errorf("%q is missing:\n%s", line, printed)
			}
		}
	}
	name := file("drain: 5s\nmax-stale: 1m\ncache-memory: 1GiB\nreplica-url: [postgres://u:secret@a/d, postgres://b/d]\ntrusted-proxies:\n  - 10.0.0.0/8\n")
	t.Setenv("LISTEDGE_MAX_STALE", "2m")
	t.Setenv("LISTEDGE_KEY_GRACE", "3m")
	all := printed("--config", name, "--key-grace", "4m", "--redis-url", "redis://:secret@h")
	has(all, "drain: 5s", "max-stale: 2m0s", "key-grace: 4m0s", `cache-memory: "1073741824"`, "query-timeout: 2s",
		"database-url: postgres://u:xxxxx@h/d", "redis-url: redis://:xxxxx@h", "- postgres://u:xxxxx@a/d", "- postgres://b/d", "- 10.0.0.0/8")
	if strings.Contains(all, "secret") || strings.Contains(printed("--config", file(`database-url: "host=h password='secret'"`)), "secret") {
		t.Error("a secret is printed")
	}
	if again := printed("--config", file(all)); again != strings.ReplaceAll(all, "\nkey-grace: 4m0s", "\nkey-grace: 3m0s") {
		t.Errorf("what is printed is not what is read:\n%s\n%s", all, again)
	}
	has(printed("--config", file(`{"drain": "6s"}`)), "drain: 6s")
	has(printed("--config", file("")), "drain: 3s")

	// The environment may name the file, and the flag counts more.
	t.Setenv("LISTEDGE_CONFIG", file("drain: 7s"))
	has(printed(), "drain: 7s", "max-stale: 2m0s")
	has(printed("--drain", "8s"), "drain: 8s")
	has(printed("--config", file("max-stale: 1m")), "drain: 3s")
	missing := filepath.Join(t.TempDir(), "none")
	t.Setenv("LISTEDGE_CONFIG", missing)
	p := start(t, "serve", "--database-url", "postgres://h/d")
	if <-p.ended; p.code != exitUsage || !strings.Contains(p.err.String(), missing) || strings.Count(p.err.String(), "\n") != 1 {
		t.Errorf("no file: exit %d: %s", p.code, p.err.String())
	}
	if words := command(t, "complete", "--", "serv"); !strings.HasPrefix(words, "serve\t") {
		t.Errorf("completion without the file: %q", words)
	}
	t.Setenv("LISTEDGE_CONFIG", "")
	has(printed(), "drain: 3s")

	for what, text := range map[string]string{"a mistyped name": "drian: 5s", "a wrong value": "drain: soon", "no YAML": "{a", "a map": "drain: {a: 1}", "a value that cannot work": "cache-memory: 1B"} {
		p := start(t, "serve", "--database-url", "postgres://h/d", "--config", file(text))
		if <-p.ended; p.code != exitUsage || strings.Count(p.err.String(), "\n") != 1 {
			t.Errorf("%s: exit %d: %s", what, p.code, p.err.String())
		}
	}
	p = start(t, "serve", "--database-url", "postgres://h/d", "--config", missing)
	if <-p.ended; p.code != exitUsage {
		t.Errorf("no file: exit %d: %s", p.code, p.err.String())
	}
}

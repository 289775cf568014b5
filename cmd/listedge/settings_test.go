package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
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
	sources := regexp.MustCompile(`  # \S+\n`)
	has := func(printed string, lines ...string) {
		t.Helper()
		for _, line := range lines {
			if !strings.Contains("\n"+printed, "\n"+line+"\n") && !strings.Contains("\n"+printed, "\n"+line+"  # ") {
				t.Errorf("%q is missing:\n%s", line, printed)
			}
		}
	}
	name := file("drain: 5s\nmax-stale: 1m\ncache-memory: 1GiB\nreplica-url: [postgres://u:secret@a/d, postgres://b/d]\ntrusted-proxies:\n  - 10.0.0.0/8\n")
	t.Setenv("LISTEDGE_MAX_STALE", "2m")
	t.Setenv("LISTEDGE_KEY_GRACE", "3m")
	all := printed("--config", name, "--key-grace", "4m", "--redis-url", "redis://:secret@h")
	has(all, "drain: 5s", "max-stale: 2m0s  # LISTEDGE_MAX_STALE", "key-grace: 4m0s  # flag", "cache-memory: 1GiB  # --config", "query-timeout: 2s  # default",
		"database-url: postgres://u:xxxxx@h/d", "redis-url: redis://:xxxxx@h", "- postgres://u:xxxxx@a/d", "- postgres://b/d", "- 10.0.0.0/8")
	if strings.Contains(all, "secret") {
		t.Error("a secret is printed")
	}
	again := sources.ReplaceAllString(printed("--config", file(all)), "\n")
	if again != strings.ReplaceAll(sources.ReplaceAllString(all, "\n"), "\nkey-grace: 4m0s", "\nkey-grace: 3m0s") {
		t.Errorf("what is printed is not what is read:\n%s\n%s", all, again)
	}
	has(printed("--config", file(`{"drain": "6s"}`)), "drain: 6s")
	has(printed("--config", file("")), "drain: 3s")

	// A text is what the file has, whatever else YAML could read in it.
	for written, text := range map[string]string{
		"010": "010", "0x1F": "0x1F", "1e3": "1e3", "1_000": "1_000", "0o17": "0o17", "+1": "+1", ".5": ".5", "1.50": "1.50", ".inf": ".inf",
		"no": "no", "True": "True", "2026-11-28": "2026-11-28", "12:30:45": "12:30:45", "!!str 010": "010", "&a 010": "010",
		"'010'": "010", `"0\x31\u0030"`: "010", "010 # eight": "010", ">-\n  0\n  10": "0 10",
	} {
		file := file("node-id: " + written)
		if p := start(t, "serve", "--database-url", "postgres://h/d", "--print-config", "--config", file); p.code != exitFine ||
			!regexp.MustCompile(`(?m)^node-id: "?'?`+regexp.QuoteMeta(text)+`"?'?  # --config$`).MatchString(p.out.String()) {
			t.Errorf("%s: exit %d: %s%s", written, p.code, p.out.String(), p.err.String())
		}
	}
	has(printed("--config", file("trusted-proxies: [10.0.0.0/8]\nnode-id: &n 010\nregion: *n\nno-docs: yes\nmax-connections: 64")), "- 10.0.0.0/8",
		`region: "010"`,
		"no-docs: true", "max-connections: 64")

	// The environment may name the file, too. The flag overrides it.
	t.Setenv("LISTEDGE_CONFIG", file("drain: 7s"))
	has(printed(), "drain: 7s", "max-stale: 2m0s")
	has(printed("--drain", "8s"), "drain: 8s")
	has(printed("--config", file("max-stale: 1m")), "drain: 3s")
	missing := filepath.Join(t.TempDir(), "none")
	t.Setenv("LISTEDGE_CONFIG", missing)
	p := start(t, "serve", "--database-url", "postgres://h/d")
	if p.code != exitUsage || !strings.Contains(p.err.String(), missing) || strings.Count(p.err.String(), "\n") != 1 {
		t.Errorf("no file: exit %d: %s", p.code, p.err.String())
	}
	t.Setenv("LISTEDGE_CONFIG", "")
	has(printed(), "drain: 3s")

	for what, text := range map[string]string{"a mistyped name": "drian: 5s", "a wrong value": "drain: soon", "no YAML": "{a", "a map": "drain: {a: 1}",
		"a map in a list": "replica-url: [{a: 1}]", "nothing": "region:", "null": "region: ~",
		"a value that cannot work": "cache-memory: 1B", "an octal number": "database-connections: 010"} {
		p := start(t, "serve", "--print-config", "--database-url", "postgres://h/d", "--config", file(text))
		if p.code != exitUsage || strings.Count(p.err.String(), "\n") != 1 {
			t.Errorf("%s: exit %d: %s", what, p.code, p.err.String())
		}
	}
	p = start(t, "serve", "--database-url", "postgres://h/d", "--config", missing)
	if p.code != exitUsage {
		t.Errorf("no file: exit %d: %s", p.code, p.err.String())
	}
}

// NAME_FILE names a file with the value of a secret, below a flag and above --config.
func TestSecretsFromFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"database": "postgres://u:s3cret@h/d\n", "replicas": "postgres://a:s3cret@b/d,postgres://c/d\r\n",
		"broken": "postgres://h/d?connect_timeout=s3cret", "empty": "\n",
		"config": "redis-url: redis://config\ndatabase-url: postgres://config/d"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const database = "LISTEDGE_DATABASE_URL_FILE=database"
	for name, c := range map[string]struct {
		env  string
		args string
		code int
		says string
	}{
		"a URL": {database, "", exitFine, "database-url: postgres://u:xxxxx@h/d  # LISTEDGE_DATABASE_URL_FILE\n"},
		"several": {database + " LISTEDGE_REPLICA_URL_FILE=replicas", "", exitFine,
			"- postgres://a:xxxxx@b/d\n- postgres://c/d  # LISTEDGE_REPLICA_URL_FILE\n"},
		"over --config": {database, "--config " + filepath.Join(dir, "config"), exitFine,
			"database-url: postgres://u:xxxxx@h/d  # LISTEDGE_DATABASE_URL_FILE\nredis-url: redis://config  # --config\n"},
		"below a flag":  {database, "--database-url postgres://flag/d", exitFine, "database-url: postgres://flag/d  # flag\n"},
		"no file":       {"LISTEDGE_DATABASE_URL_FILE=none", "", exitUsage, "LISTEDGE_DATABASE_URL_FILE: open " + filepath.Join(dir, "none")},
		"an empty file": {"LISTEDGE_DATABASE_URL_FILE=empty", "", exitUsage, "LISTEDGE_DATABASE_URL_FILE: " + filepath.Join(dir, "empty") + " is empty"},
		"a wrong URL":   {"LISTEDGE_DATABASE_URL_FILE=broken", "", exitUsage, "--database-url: postgres://h/d: invalid connect_timeout"},
		"a value and a file": {database + " LISTEDGE_DATABASE_URL=postgres://u:s3cret@h/e", "", exitUsage,
			"LISTEDGE_DATABASE_URL and LISTEDGE_DATABASE_URL_FILE: remove one"},
		"of what is no secret": {database + " LISTEDGE_DRAIN_FILE=database", "", exitUsage, "the environment has LISTEDGE_DRAIN_FILE, and there is no such setting"},
		"of another command":   {database + " LISTEDGE_REPLICATION_URL_FILE=none", "doctor --help", exitFine, "$LISTEDGE_REPLICATION_URL_FILE"},
		"a variable that is ''": {database + " LISTEDGE_REDIS_URL_FILE= LISTEDGE_REPLICATION_URL=", "", exitFine,
			"database-url: postgres://u:xxxxx@h/d  # LISTEDGE_DATABASE_URL_FILE\n"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, variable := range strings.Fields(c.env) {
				name, value, _ := strings.Cut(variable, "=")
				if strings.HasSuffix(name, fileSuffix) && value != "" {
					value = filepath.Join(dir, value)
				}
				t.Setenv(name, value)
			}
			args := append([]string{"serve", "--print-config"}, strings.Fields(c.args)...)
			if strings.HasSuffix(c.args, "--help") {
				args = args[2:]
			}
			p := start(t, args...)
			said := p.out.String() + p.err.String()
			if p.code != c.code || !strings.Contains(said, c.says) || strings.Contains(said, "s3cret") {
				t.Errorf("exit %d: %s", p.code, said)
			}
		})
	}
	parser, _ := newParser(&cli{}, io.Discard, io.Discard)
	for _, flag := range allFlags(parser.Model) {
		if strings.HasSuffix(flag.Name, "-url") != flag.Tag.Has("secret") {
			t.Errorf("--%s: only URLs have passwords", flag.Name)
		}
	}
}

func TestMistypedVariables(t *testing.T) {
	for _, name := range []string{"LISTEDGE_DATABSE_URL", "LISTEDGE_DRAINÄ", "LISTEDGE_", "LISTEDGE_PORT"} { // which Kubernetes may have given
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "s3cret")
			for _, args := range [][]string{{"serve", "--database-url", "postgres://h/d", "--print-config"}, {"serve"}, {"workspaces", "list"}, {"purge"}} {
				p := start(t, args...)
				if p.code != exitUsage || strings.Count(p.err.String(), "\n") != 1 ||
					!strings.Contains(p.err.String(), "the environment has "+name+", and there is no such setting") {
					t.Errorf("%v: exit %d: %s", args, p.code, p.err.String())
				}
				if strings.Contains(p.err.String(), "s3cret") {
					t.Errorf("%v: the value is shown: %s", args, p.err.String())
				}
			}
			for _, args := range [][]string{{"--help"}, {"serve", "--help"}, {"--version"}} {
				if command(t, args...) == "" {
					t.Errorf("%v prints nothing", args)
				}
			}
		})
	}
}

// Variables of other commands and of other programs are no error.
func TestVariablesOfOthers(t *testing.T) {
	for name, value := range map[string]string{
		"LISTEDGE_EXPIRES_IN": "1h", "LISTEDGE_DATA_DIR": "/tmp", "LISTEDGE_WORKSPACE": "x", "LISTEDGE_NODE": "http://h:1", "LISTEDGE_CONFIG": "",
		"LISTEDGEX": "1", "MY_LISTEDGE_X": "1",
		// As Kubernetes has them for the Services listedge and listedge-admin.
		"LISTEDGE_SERVICE_HOST": "10.0.0.1", "LISTEDGE_SERVICE_PORT": "80", "LISTEDGE_SERVICE_PORT_HTTP": "80", "LISTEDGE_PORT": "tcp://10.0.0.1:80",
		"LISTEDGE_PORT_80_TCP":       "tcp://10.0.0.1:80",
		"LISTEDGE_PORT_80_TCP_PROTO": "tcp", "LISTEDGE_PORT_80_TCP_PORT": "80", "LISTEDGE_PORT_80_TCP_ADDR": "10.0.0.1",
		"LISTEDGE_ADMIN_SERVICE_HOST": "10.0.0.2", "LISTEDGE_ADMIN_SERVICE_PORT": "9090", "LISTEDGE_ADMIN_PORT": "tcp://10.0.0.2:9090",
		"LISTEDGE_ADMIN_PORT_9090_TCP_ADDR": "10.0.0.2", "LISTEDGE_ADMIN_PORT_9090_TCP": "tcp://10.0.0.2:9090",
	} {
		t.Setenv(name, value)
	}
	if printed := command(t, "serve", "--database-url", "postgres://h/d", "--print-config"); !strings.Contains(printed, "database-url: postgres://h/d  # flag\n") {
		t.Error(printed)
	}
}

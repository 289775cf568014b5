package main

import (
	"strings"
	"testing"
)

func TestMistypedVariables(t *testing.T) {
	for name, want := range map[string]string{
		"LISTEDGE_DATABSE_URL":  "did you mean LISTEDGE_DATABASE_URL?",
		"LISTEDGE_CACHE_MEMROY": "did you mean LISTEDGE_CACHE_MEMORY?",
		"LISTEDGE_CONIFG":       "did you mean LISTEDGE_CONFIG?",
		"LISTEDGE_DRAIN_":       "did you mean LISTEDGE_DRAIN?",
		"LISTEDGE_DRAINÄ":       "LISTEDGE_DRAIN",
		"LISTEDGE_":             "no such setting",
		"LISTEDGE_PORT":         "no such setting", // unless Kubernetes gave it
		"LISTEDGE_WEATHER":      "LISTEDGE_WEATHER, and there is no such setting\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "s3cret")
			for _, args := range [][]string{{"serve", "--database-url", "postgres://h/d", "--print-config"}, {"serve"}, {"workspaces", "list"}, {"purge"}} {
				p := start(t, args...)
				if <-p.ended; p.code != exitUsage || strings.Count(p.err.String(), "\n") != 1 || !strings.Contains(p.err.String(), want) || !strings.Contains(p.err.String(), name) {
					t.Errorf("%v: exit %d: %s", args, p.code, p.err.String())
				}
				if strings.Contains(p.err.String(), "s3cret") {
					t.Errorf("%v: the value is told: %s", args, p.err.String())
				}
			}
			for _, args := range [][]string{{"--help"}, {"serve", "--help"}, {"--version"}, {"complete", "--", "ser"}, {"completion", "bash"}} {
				if command(t, args...) == "" {
					t.Errorf("%v prints nothing", args)
				}
			}
		})
	}
}

// Settings of other commands, and what others put there, are nobody's mistake.
func TestVariablesOfOthers(t *testing.T) {
	for name, value := range map[string]string{
		"LISTEDGE_EXPIRES_IN": "1h", "LISTEDGE_DATA_DIR": "/tmp", "LISTEDGE_WORKSPACE": "x", "LISTEDGE_ADMIN": "http://h:1", "LISTEDGE_CONFIG": "", "LISTEDGE_INSTALL_ROOT": "/tmp", "LISTEDGEX": "1", "MY_LISTEDGE_X": "1",
		// As Kubernetes has them for the Services listedge and listedge-admin.
		"LISTEDGE_SERVICE_HOST": "10.0.0.1", "LISTEDGE_SERVICE_PORT": "80", "LISTEDGE_SERVICE_PORT_HTTP": "80", "LISTEDGE_PORT": "tcp://10.0.0.1:80", "LISTEDGE_PORT_80_TCP": "tcp://10.0.0.1:80",
		"LISTEDGE_PORT_80_TCP_PROTO": "tcp", "LISTEDGE_PORT_80_TCP_PORT": "80", "LISTEDGE_PORT_80_TCP_ADDR": "10.0.0.1",
		"LISTEDGE_ADMIN_SERVICE_HOST": "10.0.0.2", "LISTEDGE_ADMIN_SERVICE_PORT": "9090", "LISTEDGE_ADMIN_PORT": "tcp://10.0.0.2:9090", "LISTEDGE_ADMIN_PORT_9090_TCP_ADDR": "10.0.0.2", "LISTEDGE_ADMIN_PORT_9090_TCP": "tcp://10.0.0.2:9090",
	} {
		t.Setenv(name, value)
	}
	if printed := command(t, "serve", "--database-url", "postgres://h/d", "--print-config"); !strings.Contains(printed, "database-url: postgres://h/d\n") {
		t.Error(printed)
	}
}

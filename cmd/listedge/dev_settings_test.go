package main

import (
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
)

// A node of `dev --nodes` has the settings that dev was given, whatever they
// are: what serve reads from the environment is what dev had.
func TestTheNodesOfDevHaveItsSettings(t *testing.T) {
	for _, args := range []string{
		"",
		"--region east --replica-url postgres://a/b,postgres://c/d --trusted-proxies 10.0.0.0/8,1.2.3.4 --redis-url redis://h " +
			"--cache-memory 1GiB --freshness-bound 1s --cache-ttl 3s --max-stale 7m --key-grace 1m --limiter-failure-mode deny " +
			"--database-connections 3 --query-timeout 1s --drain 5s --log-format json --log-level warn --access-log errors --server-timing --max-connections 500 --no-docs",
	} {
		var dev, serve cli
		parser, _ := newParser(&dev, io.Discard, io.Discard)
		flags, err := parser.Parse(append([]string{"dev"}, strings.Fields(args)...))
		if err != nil {
			t.Fatal(err)
		}
		listen := listenFlags{Listen: "127.0.0.1:1", AdminListen: "127.0.0.1:2"}
		for _, setting := range environment(flags, listen, "postgres://h/d") {
			name, value, _ := strings.Cut(setting, "=")
			t.Setenv(name, value)
		}
		parser, _ = newParser(&serve, io.Discard, io.Discard)
		if _, err := parser.Parse([]string{"serve"}); err != nil {
			t.Fatal(err)
		}
		if shown := settingsInEffect(flags)["drain"]; shown != dev.Dev.Drain.String() || args == "" && dev.Dev.Drain != 300*time.Millisecond || args != "" && dev.Dev.Drain != 5*time.Second {
			t.Errorf("%s: drains for %s, and shows %s", args, dev.Dev.Drain, shown)
		}
		if got, want := serve.Serve, (serveCommand{listenFlags: listen, databaseFlags: databaseFlags{"postgres://h/d"}, nodeFlags: dev.Dev.nodeFlags}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n%+v\n%+v", args, got, want)
		}
	}
}

package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"text/template"

	"listedge/internal/sandbox"
)

//go:embed opponents
var opponents embed.FS

// setting is what the opponents' configurations are filled in with.
type setting struct {
	Address, Dir, User                   string
	Upstream, UpstreamHost, UpstreamPort string // where they get the page
	RedisHost, RedisPort                 string
	Key, Workspace                       string
	Root                                 string // before the paths of the servers' own files
}

// configure writes the configuration of that name into a folder of its own, and the page as the
// files of a web server. If gzip is measured, the plain file need only exist.
func (v *setting) configure(name, encoding string, page []byte) (file string, err error) {
	if v.Dir, err = os.MkdirTemp("", "listedge-bench-"); err != nil {
		return "", err
	}
	text, err := template.ParseFS(opponents, "opponents/"+name)
	if err != nil {
		return "", err
	}
	file = filepath.Join(v.Dir, name)
	to, err := os.Create(file)
	if err != nil {
		return "", err
	}
	err = errors.Join(os.Chmod(v.Dir, 0o755), text.Execute(to, v), to.Close(), os.WriteFile(filepath.Join(v.Dir, "page"), page, 0o644))
	if encoding == "gzip" {
		err = errors.Join(err, os.WriteFile(filepath.Join(v.Dir, "page.gz"), page, 0o644))
	}
	return file, err
}

// opponent is what people would pick instead: its program, how it is started,
// and how much less than it a hit is to cost.
type opponent struct {
	name, program, file string
	arguments           func(file string, v *setting) []string
	files               bool               // it serves the page from files
	goal                map[string]float64 // by encoding; 0 = none
}

var allOpponents = []opponent{
	{name: "nginx with Lua, Redis and proxy_cache", program: "nginx", file: "nginx-lua.conf", goal: map[string]float64{"identity": 1 / 2.5, "gzip": 1 / 2.5},
		arguments: func(file string, v *setting) []string { return []string{"-c", file} }},
	{name: "Varnish, no key, no limit", program: "varnishd", file: "varnish.vcl", goal: map[string]float64{"identity": 1 / 1.5, "gzip": 1 / 1.5},
		arguments: func(file string, v *setting) []string {
			return []string{"-F", "-a", v.Address, "-f", file, "-n", filepath.Join(v.Dir, "work"), "-s", "default,256m",
				"-p", "http_gzip_support=off" /* keep both encodings, as nginx does: unpacking one for each answer costs 0.1 ms */}
		}},
	{name: "nginx, a static file", program: "nginx", file: "nginx-static.conf", goal: map[string]float64{"gzip": 1}, files: true,
		arguments: func(file string, v *setting) []string { return []string{"-c", file} }},
}

// measureOpponents compares hits with those of other servers for the same page. Servers that are
// not installed are left out. The bare handler takes part as the least that a server in Go
// needs.
func measureOpponents(ctx context.Context, s *subject, r *report) error {
	r.rivalsTable(s.fetched)
	redis := must1(sandbox.StartRedis(ctx, filepath.Join(filepath.Dir(s.program), "opponents-redis")))
	defer func() { _ = redis.Stop() }()
	return s.againstBare(ctx, func(ours, bare *server) error { return s.opposed(ctx, ours, bare, redis.Addr(), r) })
}

func (s *subject) opposed(ctx context.Context, ours, bare *server, redis string, r *report) error {
	v := setting{Upstream: ours.address, Key: s.key, Workspace: s.workspace.String(), User: "nobody nogroup", Root: s.fetched}
	v.UpstreamHost, v.UpstreamPort, _ = net.SplitHostPort(ours.address)
	v.RedisHost, v.RedisPort, _ = net.SplitHostPort(redis)
	for _, encoding := range []string{"identity", "gzip"} {
		a := &side{name: "listedge", server: ours, path: itemsPath(pageSize), headers: []string{"X-API-Key: " + s.key, "Accept-Encoding: " + encoding}}
		page, err := a.awaitHit(http.StatusOK, ourHit)
		if err != nil {
			return err
		}
		floor, err := bareSide(bare, a.headers, page.size)
		if err != nil {
			return err
		}
		sides := []*side{a, floor}
		goals := []float64{0, 0}
		for _, o := range allOpponents {
			if _, err := exec.LookPath(o.program); err != nil {
				r.leaveOut(o.name + ": " + o.program + " is not installed")
				continue
			}
			b, end, err := o.start(v, a, encoding, page)
			if err != nil {
				return fmt.Errorf("%s: %w", o.name, err)
			}
			defer end()
			sides, goals = append(sides, b), append(goals, o.goal[encoding])
		}
		if err := takeTurns(ctx, rounds, connections, sides...); err != nil {
			return err
		}
		for i, b := range sides[1:] {
			r.ratio(fmt.Sprintf("memory hit, 50 items, %s: CPU per request, µs, against %s", encoding, b.name), "%.2f", a.cost.perRequest(), b.cost.perRequest(),
				goals[i+1])
		}
		r.bar("Against others, CPU per request, µs", encoding, sides...)
	}
	return nil
}

// start starts the opponent and has it fetch the page, which must then be a
// hit of the same length.
func (o *opponent) start(v setting, ours *side, encoding string, page answer) (*side, func(), error) {
	server, err := startServer(o.program, func(address, _ string) []string {
		v.Address = address
		file, err := v.configure(o.file, encoding, page.body)
		if err != nil {
			return []string{"-h"} // and so ends
		}
		return o.arguments(file, &v)
	})
	end := func() {
		if server != nil {
			server.end()
		}
		os.RemoveAll(v.Dir)
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	b := &side{name: o.name, server: server, path: ours.path, headers: ours.headers}
	isHit := func(h http.Header) bool { return h.Get("X-Cache") == "HIT" }
	if o.files {
		b.path, isHit = "/page", anyHit
	}
	got, err := b.awaitHit(http.StatusOK, isHit)
	if err == nil && (len(got.body) != len(page.body) || got.header.Get("Content-Encoding") != page.header.Get("Content-Encoding")) {
		err = fmt.Errorf("its page has %d bytes (%s), that of listedge %d (%s)", len(got.body), got.header.Get("Content-Encoding"), len(page.body),
			page.header.Get("Content-Encoding"))
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return b, end, nil
}

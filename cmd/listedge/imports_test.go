package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Who may import whom, as the README draws it. Test files are free.
var (
	mayImport = map[string][]string{
		"cmd/listedge":                  {"edge", "cache", "limiter", "origin", "origin/load", "origin/follower", "origin/postgres", "internal/changefeed", "metrics", "internal/tracing", "internal/rawconn", "internal/sandbox", "internal/redact", "internal/boottime"},
		"bench":                         {"internal/changefeed", "origin/follower", "origin/postgres", "edge", "cache", "limiter", "origin", "origin/load", "metrics", "internal/sandbox"},
		"edge":                          {"cache", "limiter", "origin", "internal/changefeed", "metrics", "internal/tracing", "internal/rawconn", "prefetch", "internal/boottime"},
		"internal/tracing":              nil,
		"metrics":                       {"internal/changefeed", "cache", "limiter", "origin", "origin/follower"},
		"cache":                         {"internal/changefeed", "prefetch", "internal/boottime"},
		"internal/changefeed":           nil,
		"origin/follower":               {"internal/changefeed", "origin/postgres"},
		"origin/postgres":               {"internal/redact", "internal/rawconn"},
		"limiter":                       {"prefetch", "internal/boottime"},
		"origin":                        {"internal/changefeed", "origin/follower", "origin/postgres", "prefetch", "internal/boottime"},
		"internal/rawconn":              nil,
		"internal/boottime":             nil,
		"internal/redact":               nil,
		"prefetch":                      nil,
		"origin/load":                   {"origin", "origin/postgres"},
		"internal/sandbox":              nil,
		"internal/sandbox/postgrestest": {"internal/sandbox"},
		"internal/sandbox/redistest":    {"internal/sandbox", "internal/sandbox/sandboxtest"},
		"internal/sandbox/sandboxtest":  {"internal/sandbox"},
		"deploy":                        nil,
		"deploy/clients":                nil,
	}
	// onlyIn names the packages that may know of an outside technology.
	onlyIn = map[string][]string{
		"github.com/valyala/fasthttp":         {"edge", "bench"},
		"go.opentelemetry.io":                 {"internal/tracing"},
		"github.com/prometheus/client_golang": {"metrics"},
		"github.com/prometheus/common":        {"metrics"},
		"github.com/dgraph-io/ristretto":      {"cache"},
		"github.com/jackc/pgx":                {"origin", "origin/load", "origin/follower", "origin/postgres", "bench", "internal/sandbox/postgrestest"},
		"github.com/redis/go-redis":           {"cache", "limiter", "internal/changefeed", "cmd/listedge", "bench", "internal/sandbox/redistest"},
		"github.com/alecthomas/kong":          {"cmd/listedge"},
		"github.com/pressly/goose":            {"origin"},
		"github.com/klauspost/compress":       {"cache"},
		"github.com/schollz/progressbar":      {"origin/load"},
		"github.com/swaggest/swgui":           {"edge"},
		"golang.org/x/sys":                    {"internal/boottime"},
		"github.com/prometheus/procfs":        {"bench"},
		"gonum.org/v1/plot":                   {"bench"},
		"github.com/hashicorp/golang-lru":     {"edge", "origin"},
		"github.com/sony/gobreaker":           {"cache", "limiter", "origin/postgres"},
		"net/http":                            {"edge", "metrics", "cmd/listedge", "bench", "deploy/clients"},
	}
)

func TestImportRules(t *testing.T) {
	root := filepath.Join("..", "..")
	checked := 0
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		relative, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		home := path.Dir(filepath.ToSlash(relative))
		allowed, known := mayImport[home]
		if !known {
			t.Errorf("%s: package %s is not in the table", relative, home)
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		checked++
		for _, spec := range parsed.Imports {
			name := strings.Trim(spec.Path.Value, `"`)
			if ours, ok := strings.CutPrefix(name, "listedge/"); ok && !slices.Contains(allowed, ours) {
				t.Errorf("%s: %s may not import %s", relative, home, ours)
			}
			for technology, homes := range onlyIn {
				if (name == technology || strings.HasPrefix(name, technology+"/")) && !slices.Contains(homes, home) {
					t.Errorf("%s: %s may not import %s", relative, home, name)
				}
			}
		}
		return nil
	})
	if err != nil || checked < 50 {
		t.Errorf("%d files checked, %v", checked, err)
	}
}

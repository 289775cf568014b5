package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The rule of imports. Test files may import anything.
var (
	mayImport = map[string][]string{
		"cmd/listedge": {"cmd/listedge/doctor", "cmd/listedge/node", "edge/admin", "limiter", "origin/apikey", "origin/admin", "origin/audit", "origin/follower",
			"origin/postgres", "origin/usage",
			"internal/list", "internal/redact", "internal/remedy", "internal/sandbox"},
		"cmd/listedge/doctor": {"cmd/listedge/node", "edge/admin", "cache", "origin/postgres", "internal/remedy"},
		"cmd/listedge/node": {"edge", "edge/admin", "cache", "limiter", "metrics", "origin", "origin/apikey", "origin/admin", "origin/follower",
			"origin/postgres", "origin/usage",
			"internal/boottime", "internal/changefeed", "internal/fleet", "internal/list", "internal/page", "internal/remedy", "internal/tracing"},
		"edge": {"cache", "cache/replica", "limiter", "metrics", "origin", "origin/apikey", "origin/usage", "internal/boottime",
			"internal/changefeed", "internal/page", "internal/rawconn", "internal/tracing", "internal/list"},
		"edge/admin": {"edge", "metrics", "internal/remedy"},
		"metrics": {"cache", "cache/replica", "limiter", "origin", "origin/apikey", "origin/follower", "origin/usage",
			"internal/changefeed", "internal/list"},
		"cache":         {"cache/replica", "internal/boottime", "internal/changefeed", "internal/fleet", "internal/list", "internal/page"},
		"cache/replica": {"internal/changefeed", "internal/list", "internal/page"},
		"limiter":       {"limiter/lease", "internal/boottime"},
		"limiter/lease": {},

		"origin":                       {"origin/postgres", "internal/changefeed", "internal/fleet", "internal/list", "internal/page", "internal/remedy"},
		"origin/postgres":              {"internal/fleet", "internal/page", "internal/redact"},
		"origin/apikey":                {"origin/postgres", "internal/boottime", "internal/changefeed", "internal/fleet", "internal/list"},
		"origin/admin":                 {"origin/apikey", "origin/audit", "origin/follower", "origin/postgres", "origin/usage", "internal/list", "internal/remedy"},
		"origin/audit":                 {"origin/postgres"},
		"origin/follower":              {"origin/postgres", "internal/changefeed", "internal/fleet", "internal/list", "internal/remedy"},
		"origin/usage":                 {"origin/postgres"},
		"origin/postgres/databasetest": {"origin/postgres"},

		"internal/boottime":              nil,
		"internal/boottime/boottimetest": {"internal/boottime"},
		"internal/changefeed":            {"internal/fleet", "internal/list"},
		"internal/fleet":                 nil,
		"internal/list":                  nil,
		"internal/list/listtest":         {"internal/list"},
		"internal/page":                  {"internal/changefeed", "internal/list"},
		"internal/rawconn":               nil,
		"internal/redact":                nil,
		"internal/remedy":                nil,
		"internal/tracing":               nil,
		"internal/world": {"internal/changefeed", "internal/fleet", "internal/list", "internal/list/listtest", "internal/page",
			"origin/follower"},
		"internal/sandbox":              nil,
		"internal/sandbox/postgrestest": {"internal/list", "internal/sandbox", "internal/sandbox/sandboxtest"},
		"internal/sandbox/redistest":    {"internal/sandbox", "internal/sandbox/sandboxtest"},
		"internal/sandbox/sandboxtest":  {"internal/sandbox"},

		"bench": {"docs/clients/go", "edge", "cache", "limiter", "metrics", "origin", "origin/apikey",
			"origin/admin", "origin/follower", "origin/postgres", "internal/changefeed", "internal/page", "internal/sandbox", "internal/list"},
		"deploy":          nil,
		"docs/clients/go": nil,
	}
	// onlyIn names the packages that may use an outside technology.
	onlyIn = map[string][]string{
		"github.com/valyala/fasthttp":         {"edge", "bench"},
		"github.com/fasthttp/router":          {"edge"},
		"go.opentelemetry.io":                 {"internal/tracing"},
		"github.com/prometheus/client_golang": {"metrics"},
		"github.com/dgraph-io/ristretto":      {"cache"},
		"github.com/jackc/pgx": {"origin", "origin/postgres", "origin/apikey", "origin/admin", "origin/audit",
			"origin/follower", "origin/usage", "bench", "internal/sandbox/postgrestest"},
		"github.com/redis/go-redis": {"cache", "limiter", "internal/changefeed", "internal/fleet", "cmd/listedge", "cmd/listedge/node",
			"bench", "internal/sandbox/redistest", "internal/world"},
		"github.com/alecthomas/kong":      {"cmd/listedge"},
		"github.com/pressly/goose":        {"origin/admin"},
		"github.com/klauspost/compress":   {"cache"},
		"github.com/swaggest/swgui":       {"edge"},
		"github.com/prometheus/procfs":    {"bench"},
		"gonum.org/v1/plot":               {"bench"},
		"golang.org/x/text":               {"internal/list"},
		"github.com/hashicorp/golang-lru": {"edge"},
		"github.com/sony/gobreaker":       {"cache", "origin/postgres"},
		"net/http": {"edge", "edge/admin", "metrics", "cmd/listedge", "cmd/listedge/doctor", "cmd/listedge/node", "bench",
			"deploy/clients", "docs/clients/go"},
	}
)

func TestImportRules(t *testing.T) {
	root := filepath.Join("..", "..")
	checked, used := 0, map[string]bool{}
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
			if imported, ok := strings.CutPrefix(name, "listedge/"); ok && !slices.Contains(allowed, imported) {
				t.Errorf("%s: %s may not import %s", relative, home, imported)
			}
			for technology, homes := range onlyIn {
				if name != technology && !strings.HasPrefix(name, technology+"/") {
					continue
				}
				used[technology] = true
				if !slices.Contains(homes, home) {
					t.Errorf("%s: %s may not import %s", relative, home, name)
				}
			}
		}
		return nil
	})
	if err != nil || checked < 50 {
		t.Errorf("%d files checked, %v", checked, err)
	}
	for technology := range onlyIn {
		if !used[technology] {
			t.Errorf("nothing imports %s: is it one of those that are given (CONTRIBUTING.md)?", technology)
		}
	}
}

// sources calls f for each Go file of the product and of its tests, with its path from
// the root.
func sources(t *testing.T, f func(name, text string)) {
	t.Helper()
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".go") {
			return err
		}
		relative, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		f(filepath.ToSlash(relative), contents(t, relative))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOnlySettingsReadTheEnvironment(t *testing.T) {
	mayRead := []string{"cmd/listedge/settings.go", "internal/sandbox/sandbox.go"}
	reads := regexp.MustCompile(`os\.(Getenv|LookupEnv|Environ)\(`)
	sources(t, func(name, text string) {
		if !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "bench/") && !strings.HasPrefix(name, "deploy/") &&
			!slices.Contains(mayRead, name) && reads.MatchString(text) {
			t.Errorf("%s reads the environment: let cmd/listedge/settings.go do it", name)
		}
	})
}

// A type's methods stand in its file, and a condition has no statement before it that does not
// declare. One method in twenty may stand elsewhere.
func TestMethodsStandWithTheirTypes(t *testing.T) {
	declared, methods, smuggled := map[string]string{}, map[string][]string{}, []string{} // files by types, files of methods by types
	sources(t, func(name, text string) {
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "bench/") {
			return
		}
		places := token.NewFileSet()
		file, err := parser.ParseFile(places, name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			before := ast.Stmt(nil)
			switch n := n.(type) {
			case *ast.TypeSpec:
				declared[path.Dir(name)+": "+n.Name.Name] = name
			case *ast.FuncDecl:
				if n.Recv != nil {
					of := path.Dir(name) + ": " + receiver.FindString(types.ExprString(n.Recv.List[0].Type))
					methods[of] = append(methods[of], name)
				}
			case *ast.IfStmt:
				before = n.Init
			case *ast.SwitchStmt:
				before = n.Init
			}
			if assigned, ok := before.(*ast.AssignStmt); before != nil && (!ok || assigned.Tok != token.DEFINE) {
				smuggled = append(smuggled, places.Position(n.Pos()).String())
			}
			return true
		})
	})
	all, away := 0, []string{}
	for of, files := range methods {
		for _, file := range files {
			all++
			if file != declared[of] {
				away = append(away, of+" in "+file)
			}
		}
	}
	slices.Sort(away)
	t.Logf("%d of %d methods stand elsewhere, %d statements before conditions", len(away), all, len(smuggled))
	if len(away) > all/20 {
		t.Errorf("%d of %d methods stand in another file than their type: %v", len(away), all, away)
	}
	if len(smuggled) > 0 {
		t.Errorf("statements stand before conditions: give each a line of its own: %v", smuggled)
	}
}

// receiver is the name in the type of a receiver.
var receiver = regexp.MustCompile(`\w+`)

// A skipped test shows nothing. A test that needs something that is not always there
// has a build tag.
func TestNoTestIsSkipped(t *testing.T) {
	skips := regexp.MustCompile(`\b[tb]\.(Skip|SkipNow|Skipf)\(`)
	sources(t, func(name, text string) {
		if name != "cmd/listedge/imports_test.go" && skips.MatchString(text) {
			t.Errorf("%s skips a test: use a build tag", name)
		}
	})
}

// What a list is stands in its description. No other code names one, so another description needs no code. The catalogue of the
// built-in lists, their sample data and examples of commands may.
func TestNoCodeNamesAList(t *testing.T) {
	named := regexp.MustCompile(`(?i)\b(items|contacts)\b`)
	mayName := []string{"internal/list/resolve.go", "internal/list/listtest/", "internal/world/", "internal/sandbox/", "bench/", "deploy/", "docs/"}
	sources(t, func(name, text string) {
		if strings.HasSuffix(name, "_test.go") || slices.ContainsFunc(mayName, func(place string) bool { return strings.HasPrefix(name, place) }) {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			found := ""
			switch n := n.(type) {
			case *ast.Field:
				n.Tag = nil // its examples are for people
			case *ast.Ident:
				found = n.Name
			case *ast.BasicLit:
				found = n.Value
			}
			if named.MatchString(found) {
				t.Errorf("%s names a list: %s", name, found)
			}
			return true
		})
	})
}

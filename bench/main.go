// Command bench prints what listedge costs, as ratios to something measured in
// the same run: a bare fasthttp handler for a hit, a bare pgx query for a miss,
// the first page for a deep one, and what people would pick instead. Rounds take
// turns between the sides, so that a noisy machine disturbs all alike; CPU time
// is user and system time of all of a side's processes, from the operating
// system. Needs Linux (/proc) and wrk.
//
//	bench [-o report.md] [-opponents folder] [-items N] [group ...]     without groups: all
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"listedge/internal/list"
	"listedge/internal/page"
	"listedge/internal/sandbox"
	"listedge/origin"
	"listedge/origin/admin"
	"listedge/origin/postgres"
)

const (
	rounds       = 6
	pageSize     = 50
	deepPage     = 2_000
	bareArgument = "bare-handler"
)

// options are what the command line says.
type options struct {
	output    string   // the report's file; empty = none
	opponents string   // the folder that opponents.sh has filled; empty = none
	items     int      // in the large workspace
	only      []string // groups; none = all
}

func main() {
	if len(os.Args) == 4 && os.Args[1] == bareArgument {
		serveBare(os.Args[2], os.Args[3])
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var o options
	flag.StringVar(&o.output, "o", "", "also write a report to this file, with its plots beside it")
	flag.StringVar(&o.opponents, "opponents", "", "use the servers that opponents.sh has put in this folder, if it has")
	flag.IntVar(&o.items, "items", 1_000_000, "items in the large workspace; page 2,000 takes 105,000")
	flag.Parse()
	o.only = flag.Args()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// subject is what is measured: a private Postgres with one large workspace, and
// smaller ones to compare it with.
type subject struct {
	url       string
	sizes     []sized   // the smallest first
	workspace uuid.UUID // the large one
	key       string    // of workspace
	program   string    // the listedge binary
	fetched   string    // the folder that servers of opponents.sh have instead of the root; empty = those of the machine are used
	postgres  *sandbox.Postgres
	db        *pgxpool.Pool
	admin     *admin.Conn
}

func run(ctx context.Context, o options) error {
	dir, err := os.MkdirTemp("", "listedge-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // Postgres runs as another account than root
		return err
	}
	for _, name := range o.only {
		if !slices.ContainsFunc(measures, func(m measure) bool { return m.name == name }) {
			return fmt.Errorf("there is no group %q", name)
		}
	}
	chosen := slices.DeleteFunc(slices.Clone(measures), func(m measure) bool { return len(o.only) > 0 && !slices.Contains(o.only, m.name) })
	if len(chosen) == 1 && chosen[0].name == "limits" { // which need a page, and no large workspace
		o.items = smallItems
	}
	fetched, err := useFetched(o.opponents)
	if err != nil {
		return err
	}
	postgres, err := sandbox.StartPostgres(ctx, sandbox.PostgresOptions{Dir: filepath.Join(dir, "postgres"), Disposable: true,
		Settings: map[string]string{"track_activity_query_size": "16kB", "maintenance_work_mem": "512MB"}}) // statements are read back whole; indexes built at once
	if err != nil {
		return err
	}
	defer func() { _ = postgres.Stop() }()
	s, err := prepare(ctx, postgres, dir, o.items)
	if err != nil {
		return err
	}
	s.fetched = fetched
	r := &report{left: map[string][]string{}, took: map[string]time.Duration{}, bin: postgres.Bin}
	var failed error // of a measure; the others go on
	for _, m := range chosen {
		fmt.Fprintln(os.Stderr, "bench:", m.name)
		r.begin(m.name)
		began := time.Now()
		err := m.perform(ctx, s, r)
		r.took[m.name] = time.Since(began)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", m.name, err))
			r.leaveOut(fmt.Sprintf("the rest of %s: %v", m.name, err))
		}
	}
	if r.print(os.Stdout); o.output == "" {
		return failed
	}
	return errors.Join(failed, r.write(ctx, o.output))
}

// measure is a group of figures.
type measure struct {
	name string
	run  func(context.Context, *subject, *report) error
}

// failure is an error that ends a measure.
type failure struct{ error }

func must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func must1[T any](v T, err error) T {
	must(err)
	return v
}

func must2[T, U any](v T, w U, err error) (T, U) {
	must(err)
	return v, w
}

// perform runs the measure until it ends, or fails.
func (m measure) perform(ctx context.Context, s *subject, r *report) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = p.error
		default:
			panic(p)
		}
	}()
	return m.run(ctx, s, r)
}

// measures in the order of the table; arguments name those that are wanted.
var measures = []measure{
	{"hits", measureHits}, {"opponents", measureOpponents}, {"latency", measureLatency}, {"redis", measureRedisHits},
	{"misses", measureMisses}, {"depth", measureDepth}, {"walks", measureWalks}, {"copies", measureCopies}, {"growth", measureGrowth},
	{"keys", measureKeys}, {"fleet", measureFleet}, {"memory", measureMemory},
	{"freshness", measureFreshness}, {"precision", measurePrecision}, {"limits", measureLimits},
}

func prepare(ctx context.Context, postgres *sandbox.Postgres, dir string, items int) (*subject, error) {
	s := &subject{url: postgres.URL("postgres"), postgres: postgres, program: filepath.Join(dir, "listedge")}
	if _, err := admin.MigrateUp(ctx, s.url, list.BuiltIn()); err != nil {
		return nil, err
	}
	var err error
	if s.db, err = pgxpool.New(ctx, s.url); err != nil {
		return nil, err
	}
	if s.admin, err = admin.Open(ctx, s.url); err != nil {
		return nil, err
	}
	if err := s.seed(ctx, items); err != nil {
		return nil, err
	}
	s.workspace = s.large().workspace
	if s.key, err = s.newKey(ctx, s.workspace); err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", s.program, "./cmd/listedge")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build: %w: %s", err, out)
	}
	return s, nil
}

// openOrigin reads the subject's pages over one connection, until end.
func (s *subject) openOrigin(ctx context.Context) (o *origin.Origin, end func(), err error) {
	db, err := postgres.Open(ctx, postgres.Options{URL: s.url, Connections: 1, QueryTimeout: 10 * time.Second})
	if err != nil {
		return nil, nil, err
	}
	return origin.New(db, list.BuiltIn(), nil), func() { _ = db.Close(context.Background()) }, nil
}

// newKey makes a key that no limit holds back.
func (s *subject) newKey(ctx context.Context, workspace uuid.UUID) (string, error) {
	rate, burst := 1e6, int32(1_000_000)
	key, err := s.admin.CreateKey(ctx, admin.Key{WorkspaceID: workspace, Scopes: list.BuiltIn().Scopes(), RatePerSecond: &rate, Burst: &burst}, nil)
	return key.Key, err
}

// firstPage is the first page of a workspace's items.
func firstPage(workspace uuid.UUID) page.Query {
	return page.Query{List: list.BuiltIn().ByName("items"), Tenant: workspace.String(), Limit: pageSize}
}

func micros(d time.Duration, n int) float64 {
	return float64(d.Nanoseconds()) / 1e3 / float64(max(n, 1))
}

func itemsPath(limit int) string { return "/v1/items?limit=" + strconv.Itoa(limit) }

// Command bench prints what listedge costs, as ratios to something measured in
// the same run: a bare fasthttp handler for a hit, a bare pgx query for a miss,
// the first page for a deep one. Rounds alternate between the two sides, so
// that a noisy machine disturbs both; CPU time is user and system time of the
// whole process, from the operating system. Needs Linux (/proc).
package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/procfs"

	"listedge/origin"
	"listedge/origin/load"
	"listedge/sandbox"
)

const (
	rounds       = 6
	roundTime    = 2 * time.Second
	itemsInList  = 200_000
	pageSize     = 50
	deepPage     = 2_000
	bareArgument = "bare-handler"
	database     = "bench"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == bareArgument {
		serveBare(os.Args[2])
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// subject is what is measured: a private Postgres with one large workspace.
type subject struct {
	url       string
	workspace uuid.UUID
	key       string
	program   string // the listedge binary
	bin       string // where Postgres' programs are
}

func run(ctx context.Context, only []string) error {
	dir, err := os.MkdirTemp("", "listedge-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // Postgres runs as another account than root
		return err
	}
	postgres, err := sandbox.StartPostgres(ctx, sandbox.PostgresOptions{Dir: filepath.Join(dir, "postgres"), Disposable: true})
	if err != nil {
		return err
	}
	defer func() { _ = postgres.Stop() }()
	s, err := prepare(ctx, postgres, dir)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "what\tours\tagainst\tratio")
	for _, m := range measures {
		if len(only) > 0 && !slices.Contains(only, m.name) {
			continue
		}
		if err := m.run(ctx, s, table); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return table.Flush()
}

// measures in the order of the table; arguments name those that are wanted.
var measures = []struct {
	name string
	run  func(context.Context, *subject, *tabwriter.Writer) error
}{{"hits", measureHits}, {"misses", measureMisses}, {"depth", measureDepth}, {"freshness", measureFreshness}}

func prepare(ctx context.Context, postgres *sandbox.Postgres, dir string) (*subject, error) {
	if err := origin.CreateDatabase(ctx, postgres.URL("postgres"), database); err != nil {
		return nil, err
	}
	s := &subject{url: postgres.URL(database), bin: postgres.Bin(), program: filepath.Join(dir, "listedge")}
	if _, err := origin.MigrateUp(ctx, s.url); err != nil {
		return nil, err
	}
	workspaces, err := load.Seed(ctx, s.url, load.SeedSpec{Workspaces: 1, Items: itemsInList, Contacts: 1000, Seed: 1}, load.NewProgress(os.Stderr))
	if err != nil {
		return nil, err
	}
	s.workspace = workspaces[0]
	admin, err := origin.OpenAdmin(ctx, s.url)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	rate, burst := 1e6, int32(1_000_000)
	key, err := admin.CreateKey(ctx, origin.NewKeySpec{Workspace: s.workspace, Rate: &rate, Burst: &burst})
	if err != nil {
		return nil, err
	}
	s.key = key.Key
	build := exec.CommandContext(ctx, "go", "build", "-o", s.program, "./cmd/listedge")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build: %w: %s", err, out)
	}
	return s, nil
}

// server is a process under load.
type server struct {
	*sandbox.Child
	address string
	admin   string
	process procfs.Proc
}

// startServer starts a program that listens on an address it is told.
func startServer(program string, args func(address, admin string) []string, env ...string) (*server, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	admin, err := freeAddress()
	if err != nil {
		return nil, err
	}
	command := exec.Command(program, args(address, admin)...)
	command.Env = append(os.Environ(), env...)
	var said bytes.Buffer
	command.Stderr = &said
	child, err := sandbox.StartChild(command)
	if err != nil {
		return nil, err
	}
	s := &server{Child: child, address: address, admin: admin}
	for range 500 {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			s.process, err = procfs.NewProc(child.Pid())
			return s, err
		}
		select {
		case <-child.Done():
			return nil, fmt.Errorf("%s ended: %s", program, said.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil, fmt.Errorf("%s does not listen", program)
}

// cpu is the processor time the process has used.
func (s *server) cpu() (time.Duration, error) {
	stat, err := s.process.Stat()
	if err != nil {
		return 0, err
	}
	return time.Duration(stat.CPUTime() * float64(time.Second)), nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func row(table *tabwriter.Writer, what, format string, ours, theirs float64) {
	fmt.Fprintf(table, "%s\t"+format+"\t"+format+"\t%.2f\n", what, ours, theirs, ours/theirs)
}

func micros(d time.Duration, n int) float64 {
	return float64(d.Nanoseconds()) / 1e3 / float64(max(n, 1))
}

func header(name, value string) string { return name + ": " + value + "\r\n" }

func get(path string, headers ...string) []byte {
	return []byte("GET " + path + " HTTP/1.1\r\nHost: bench\r\n" + strings.Join(headers, "") + "\r\n")
}

func itemsPath(limit int) string { return "/v1/items?limit=" + strconv.Itoa(limit) }

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"listedge/cmd/listedge/node"
	"listedge/internal/list"
	"listedge/internal/sandbox"
	"listedge/origin/admin"
	"listedge/origin/postgres"
)

type devCommand struct {
	Listen      string `help:"Address of the public listener; further nodes take the next ports." default:"127.0.0.1:8080" placeholder:"ADDRESS"`
	AdminListen string `help:"Address of the admin listener; further nodes take the next ports." default:"127.0.0.1:9090" placeholder:"ADDRESS"`
	DataDir     string `help:"Folder of the private Postgres; its data is kept between runs." default:"${dataDir}" type:"path" placeholder:"DIR"`
	ListsFlag
	Nodes int `help:"Number of nodes: the private Postgres has connections for 8. Several share a private Redis." default:"1" enum:"1,2,3,4,5,6,7,8"`
	node.Flags
}

// devStartTimeout bounds starting a server, also on a slow laptop.
const devStartTimeout = 2 * time.Minute

var errPostgresEnded = errors.New("the private Postgres has ended")

// Run starts Postgres, prepares it, and serves on it until ctx ends.
func (c *devCommand) Run(ctx context.Context, t *terminal, flags *kong.Context) (err error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP) // the terminal was closed
	defer stop()
	signal.Ignore(syscall.SIGPIPE) // when the reader of the log is gone
	nodes, err := c.listen()       // first: a port in use is the most frequent mistake
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.DataDir, 0o755); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	unlock, err := lockFolder(c.DataDir)
	if err != nil {
		return err
	}
	defer unlock()
	fmt.Fprintf(t.err, "Postgres in %s …\n", visible(c.DataDir))
	startCtx, cancel := context.WithTimeout(ctx, devStartTimeout)
	defer cancel()
	postgres, err := sandbox.StartPostgres(startCtx, sandbox.PostgresOptions{Dir: c.DataDir})
	if err != nil {
		return fmt.Errorf("start Postgres: %w", err)
	}
	if postgres.Found {
		fmt.Fprintf(t.err, "It has the data of earlier runs. To start over, stop this and remove the folder: rm -r %s\n", visible(c.DataDir))
	}
	defer func() { err = errors.Join(err, postgres.Stop()) }()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	go func() { // ends with Postgres, which the deferred function above stops
		<-postgres.Done()
		giveUp(fmt.Errorf("%w; its log is %s", errPostgresEnded, postgres.LogFile()))
	}()
	err = c.serve(ctx, t, flags, nodes, postgres.URL("postgres"))
	if cause := context.Cause(ctx); errors.Is(cause, errPostgresEnded) {
		err = cmp.Or(err, cause)
	}
	return err
}

// serve prepares the database at the URL and runs the nodes on it.
func (c *devCommand) serve(ctx context.Context, t *terminal, flags *kong.Context, nodes []*devNode, url string) (result error) {
	lists, key, err := c.prepare(ctx, url)
	if err != nil {
		if ctx.Err() != nil {
			return nil // interrupted
		}
		return err
	}
	if c.Nodes > 1 && c.RedisURL == "" {
		startCtx, cancel := context.WithTimeout(ctx, devStartTimeout)
		defer cancel()
		redis, err := sandbox.StartRedis(startCtx, filepath.Join(c.DataDir, "redis"))
		if err != nil {
			return fmt.Errorf("start Redis: %w", err)
		}
		defer func() { result = errors.Join(result, redis.Stop()) }()
		c.RedisURL = redis.URL()
	}
	for i, n := range nodes { // which take over the listeners
		log := node.NewLog(t.log, c.Flags)
		if c.Nodes > 1 {
			log.Handler = log.WithAttrs([]slog.Attr{slog.Int("node", i+1)})
		}
		slog.SetDefault(slog.New(log)) // for libraries that log by themselves
		settings := settingsInEffect(flags)
		settings["listen"], settings["admin-listen"] = n.Listen, n.AdminListen
		n.Node, err = newNode(ctx, node.Options{Flags: c.Flags, Lists: lists, Settings: settings, DatabaseURL: url, ReplicationURL: url,
			Log: log, Public: n.public, Private: n.private})
		if err != nil {
			return err // which ends the process
		}
	}
	c.welcome(t, nodes, url, lists, key)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, len(nodes))
	for _, n := range nodes {
		go func() { ended <- n.Serve(ctx) }()
	}
	for range nodes { // the end of one ends all
		result = errors.Join(result, <-ended)
		stop()
	}
	return result
}

// devNode is one of the nodes of `listedge dev`, and where it listens.
type devNode struct {
	node.ListenFlags
	public, private net.Listener
	*node.Node
}

// listen opens the listeners of each node, on successive ports. An error ends the process.
func (c *devCommand) listen() (nodes []*devNode, err error) {
	for i := range c.Nodes {
		n := &devNode{ListenFlags: node.ListenFlags{Listen: nthPort(c.Listen, i), AdminListen: nthPort(c.AdminListen, i)}}
		n.public, n.private, err = node.Listen(n.ListenFlags)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// nthPort returns the address with n added to its port.
func nthPort(address string, n int) string {
	host, port, _ := net.SplitHostPort(address)
	number, _ := strconv.Atoi(port)
	if number == 0 {
		return address // the kernel chooses, or refuses it
	}
	return net.JoinHostPort(host, strconv.Itoa(number+n))
}

// prepare makes what is missing of schema, tables, sample data and a workspace. It makes a new key for all lists: those of earlier
// runs still work, but only their hashes are stored.
func (c *devCommand) prepare(ctx context.Context, url string) (lists *list.Set, key admin.Key, err error) {
	lists, tenant := list.BuiltIn(), ""
	if c.Lists == "" {
		_, err = admin.MigrateUp(ctx, url, lists)
	} else {
		lists, tenant, err = c.described(ctx, url)
	}
	if err != nil {
		return nil, key, err
	}
	conn, err := admin.Open(ctx, url)
	if err != nil {
		return nil, key, err
	}
	defer conn.Close()
	workspaces, err := conn.Workspaces(ctx)
	if err == nil && len(workspaces) == 0 && lists.BuiltIn {
		err = sample(ctx, url)
		if err == nil {
			workspaces, err = conn.Workspaces(ctx)
		}
	}
	if tenant != "" {
		workspaces = slices.DeleteFunc(workspaces, func(w admin.Workspace) bool { return w.Tenant != tenant })
	}
	if err == nil && len(workspaces) == 0 {
		workspaces = make([]admin.Workspace, 1)
		workspaces[0], err = conn.CreateWorkspace(ctx, "dev", nil, nil, nil, tenant)
	}
	if err != nil {
		return nil, key, err
	}
	key, err = conn.CreateKey(ctx, admin.Key{WorkspaceID: workspaces[0].ID, Name: "dev", Scopes: lists.Scopes()}, nil)
	return lists, key, err
}

// described makes the lists of a description, and all that they need. If the database has none of their tables, it first runs the
// SQL file beside the description, if there is one. tenant is that of some row; empty = there is none.
func (c *devCommand) described(ctx context.Context, url string) (lists *list.Set, tenant string, err error) {
	_, err = admin.MigrateUp(ctx, url, &list.Set{})
	if err != nil {
		return nil, "", err
	}
	conn, err := postgres.ConnectPrimary(ctx, url)
	if err != nil {
		return nil, "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var tables []string
	for _, name := range c.Description.Tables() {
		tables = append(tables, name.SQL())
	}
	found := false
	err = conn.QueryRow(ctx, "SELECT bool_or(to_regclass(name) IS NOT NULL) FROM unnest($1::text[]) name", tables).Scan(&found)
	if err != nil {
		return nil, "", fmt.Errorf("look for tables: %w", err)
	}
	file := strings.TrimSuffix(c.Lists, filepath.Ext(c.Lists)) + ".sql"
	text, err := os.ReadFile(file)
	if err == nil && !found {
		_, err = conn.PgConn().Exec(ctx, string(text)).ReadAll()
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", file, err)
		}
	}
	lists, err = c.Resolve(ctx, url)
	if err == nil {
		err = admin.ApplyLists(ctx, url, lists, func(admin.Step) {})
	}
	if err != nil {
		return nil, "", err
	}
	for _, l := range lists.Lists {
		if l.Tenant >= 0 && tenant == "" && err == nil {
			column := list.Quote(l.Columns[l.Tenant].Name)
			err = conn.QueryRow(ctx, "SELECT coalesce(min("+column+"::text), '') FROM "+l.Table.SQL()).Scan(&tenant)
		}
	}
	return lists, tenant, err
}

// sample makes two workspaces of a few thousand sample rows.
func sample(ctx context.Context, url string) error {
	conn, err := postgres.ConnectPrimary(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for n := range 2 {
		if _, err := conn.PgConn().Exec(ctx, sandbox.Sample(n+1, 3000, 1500)).ReadAll(); err != nil {
			return fmt.Errorf("sample data: %w", err)
		}
	}
	return nil
}

func (c *devCommand) welcome(t *terminal, nodes []*devNode, url string, lists *list.Set, key admin.Key) {
	fmt.Fprintf(t.out, "\nworkspace  %s\nkey        %s\ndatabase   %s\n", key.WorkspaceID, key.Key, url)
	if c.RedisURL != "" {
		fmt.Fprintf(t.out, "redis      %s\n", visible(c.RedisURL))
	}
	for _, n := range nodes {
		fmt.Fprintf(t.out, "node       http://%s  (reference: /docs, admin: http://%s)\n", n.public.Addr(), n.private.Addr())
	}
	fmt.Fprintf(t.out, "\ncurl -i -H 'X-API-Key: %s' 'http://%s/v1/%s?limit=5'\n\n", key.Key, nodes[0].public.Addr(), lists.Lists[0].Name)
}

// lockFolder makes sure that only one `dev` uses a folder, also while there is no Postgres yet
// to say so. The kernel releases the lock when the process ends.
func lockFolder(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--data-dir: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("--data-dir: another `listedge dev` runs in %s", dir)
	}
	return func() { f.Close() }, nil
}

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/alecthomas/kong"

	"listedge/origin/postgres"
)

// cli is the whole command line. Every flag is also an environment variable:
// --database-url is LISTEDGE_DATABASE_URL. The drain of `dev` is short, because no load
// balancer has to notice it.
//
// kong calls Validate of a command and of each exported struct that is embedded in it.
type cli struct {
	Dev        devCommand        `cmd:"" set:"drain=300ms" help:"Run on a private Postgres with sample data, to try it."`
	Serve      serveCommand      `cmd:"" set:"drain=3s" help:"Run one edge node."`
	Migrate    migrateCommand    `cmd:"" help:"Create or update the schema."`
	Doctor     doctorCommand     `cmd:"" help:"Check Postgres, Redis and the nodes, and say what to do."`
	Workspaces workspacesCommand `cmd:"" help:"Create, list, suspend and resume workspaces."`
	Keys       keysCommand       `cmd:"" help:"Create, list, rotate and revoke API keys."`
	Audit      auditCommand      `cmd:"" help:"List who did what to workspaces, keys and data, and when."`
	Usage      usageCommand      `cmd:"" help:"Print the usage of the keys of a workspace."`
	Purge      purgeCommand      `cmd:"" help:"Make all nodes read the pages of a workspace, or all pages, again."`
	Ready      readyCommand      `cmd:"" help:"Exit with 0 if a node is ready, for health checks."`
	Explain    explainCommand    `cmd:"" help:"Print what a node recorded of a recent request: its limit, its page, its times."`
	Import     importCommand     `cmd:"" help:"Load items or contacts from a CSV file."`
	Seed       seedCommand       `cmd:"" help:"Load deterministic sample data of any size."`
	Help       helpCommand       `cmd:"" help:"Print what a command does, its flags and an example."`
	Version    versionCommand    `cmd:"" help:"Print version and revision."`

	Config      configFlag       `help:"File with settings of a command: YAML with the names of its flags. Flags and environment override it." placeholder:"FILE"`
	VersionFlag kong.VersionFlag `name:"version" help:"Print version and revision." env:"-"`
}

// DatabaseFlags say where Postgres is.
type DatabaseFlags struct {
	DatabaseURL string `help:"Postgres, as postgres://user:password@host:port/database. With several addresses (host:port,host:port) the primary is used." required:"" placeholder:"URL"`
}

// Validate refuses an empty URL, which would mean the defaults of libpq.
func (f *DatabaseFlags) Validate() error {
	if f.DatabaseURL == "" {
		return fmt.Errorf("--database-url must be given, or LISTEDGE_DATABASE_URL")
	}
	if err := postgres.CheckURL(f.DatabaseURL); err != nil {
		return fmt.Errorf("--database-url: %w", err)
	}
	return nil
}

// ReplicationFlag is the database whose changes are followed.
type ReplicationFlag struct {
	ReplicationURL string `help:"The same database without a connection pooler, if --database-url leads to one: changes cannot be followed through a pooler. Empty: --database-url." placeholder:"URL"`
}

// Validate refuses a malformed URL.
func (f *ReplicationFlag) Validate() error {
	if f.ReplicationURL == "" {
		return nil
	}
	if err := postgres.CheckURL(f.ReplicationURL); err != nil {
		return fmt.Errorf("--replication-url: %w", err)
	}
	return nil
}

// defaultDataDir returns where `dev` keeps its Postgres: a folder in the user's state
// folder. For root it is in /var/lib, because Postgres then runs as another account,
// which may not read root's home.
func defaultDataDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/listedge"
	}
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "listedge")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return filepath.Join(os.TempDir(), "listedge")
	}
	return filepath.Join(home, ".local", "state", "listedge")
}

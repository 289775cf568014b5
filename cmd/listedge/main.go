// Command listedge answers list requests from memory, as fresh as the database, and
// reads Postgres only when it must.
//
//	main.go ──► database.go, settings.go: flags, environment, --config ──► one command
//	                                                                        │
//	serve.go, dev.go ──► node/: wires cache, limiter, origin, edge ◄────────┤
//	workspaces.go, keys.go, migrate.go … ──► origin/ ◄───────────┤
//	doctor.go, ready.go, explain.go ──► doctor/: servers and running nodes ◄┘
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"reflect"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9/logging"

	"listedge/cmd/listedge/node"
	"listedge/internal/list"
	"listedge/internal/redact"
	"listedge/internal/remedy"
	"listedge/origin/audit"
	"listedge/origin/postgres"
)

// cli is the whole command line. Every flag is also an environment variable:
// --database-url is LISTEDGE_DATABASE_URL. The drain of `dev` is short, because no load
// balancer has to notice it. An example takes --database-url from the environment.
//
// kong calls Validate of a command and of each exported struct that is embedded in it.
type cli struct {
	Dev        devCommand        `cmd:"" set:"drain=300ms" example:"--nodes 3" help:"Run on a private Postgres with sample data, to try it."`
	Serve      serveCommand      `cmd:"" set:"drain=3s" example:"--redis-url redis://:secret@cache:6379" help:"Run one edge node."`
	Migrate    migrateCommand    `cmd:"" help:"Create or update the schema."`
	Doctor     doctorCommand     `cmd:"" example:"--node http://10.0.0.7:9090" help:"Check Postgres, Redis and the nodes, and say what to do."`
	Workspaces workspacesCommand `cmd:"" help:"Create, list, suspend and resume workspaces."`
	Keys       keysCommand       `cmd:"" help:"Create, list, rotate and revoke API keys."`
	Lists      listsCommand      `cmd:"" help:"Show, plan, check and describe the lists."`
	Audit      auditCommand      `cmd:"" example:"--workspace ID --since 7d" help:"List who did what to workspaces, keys and data, and when."`
	Usage      usageCommand      `cmd:"" example:"--workspace ID --since 7d" help:"Print the usage of the keys of a workspace."`
	Purge      purgeCommand      `cmd:"" example:"--workspace ID" help:"Make all nodes read the pages of a workspace, or all pages, again."`
	Ready      readyCommand      `cmd:"" example:"--node http://127.0.0.1:9090 --wait 60s" help:"Exit with 0 if a node is ready, for health checks."`
	Explain    explainCommand    `cmd:"" example:"01JA2B3C4D" help:"Print what a node recorded of a recent request: its limit, its page, its times."`

	Config  configFlag       `help:"File with settings of a command: YAML with the names of its flags. Flags and environment override it." placeholder:"FILE"`
	Version kong.VersionFlag `help:"Print version and revision." env:"-"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() {
		<-ctx.Done()
		stop() // a second signal ends the process at once
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

var errInterrupted = errors.New("interrupted")

// cancelled reports whether the error comes from cancelling ctx. The error of a
// cancelled statement may come from the server.
func cancelled(err error) bool {
	return errors.Is(err, context.Canceled) || postgres.Code(err) == "57014" // query_canceled
}

// run is the program; tests call it as main does.
func run(ctx context.Context, args []string, out, errs io.Writer) int {
	logging.Disable() // of the Redis client: callers count and log its failures
	var c cli
	if len(args) == 0 {
		args = []string{"--help"}
	}
	printed, log := &checkedWriter{to: out}, node.NewLineQueue(errs)
	defer log.Close()
	parser, exited := newParser(&c, printed, errs)
	parsed, err := parser.Parse(args)
	switch {
	case *exited: // --help or --version has printed
		err = nil
	case err != nil:
		err = usageError{Err: rewordParserError(err)}
	default:
		parsed.BindTo(ctx, (*context.Context)(nil))
		parsed.Bind(&terminal{out: printed, err: errs, log: log})
		err = withRemedy(parsed.Run(), parsed)
	}
	if ctx.Err() != nil && cancelled(err) {
		err = errInterrupted
	}
	err = cmp.Or(printed.err, err)
	if err == nil {
		return exitFine
	}
	printError(log, err, args)
	if errors.As(err, new(usageError)) || errors.Is(err, postgres.ErrParameter) {
		return exitUsage
	}
	return exitFailed
}

// printError writes an error as one line, and the mistakes of a description as a line each.
func printError(to io.Writer, err error, args []string) {
	texts := list.Mistakes{err.Error()}
	errors.As(err, &texts)
	for _, text := range texts {
		fmt.Fprintf(to, "listedge: %s\n", visible(remedy.OneSentence(redact.Text(text, inputs(args)...))))
	}
}

// reworded has what the parser says of a command's form, and what this program says in its place.
var reworded = []struct {
	said *regexp.Regexp
	says string
}{
	{regexp.MustCompile(`^(--[a-z-]+): expected \w+ value but got "EOL".*`), "$1 needs a value"},
	{regexp.MustCompile(`^(--[a-z-]+): expected \w+ value but got "([^"]*)" \(.*\)`), "$1 needs a value, and is followed by $2"},
	{regexp.MustCompile(`^expected "<id>"`), "the id (<id>) is missing: --help has an example"},
	{regexp.MustCompile(`^unexpected argument ([^ ,]+)`), "unexpected argument $1, which is no command here: --help lists them"},
}

// rewordParserError makes an error of the parser easier to understand.
func rewordParserError(err error) error {
	for _, r := range reworded {
		if r.said.MatchString(err.Error()) {
			return errors.New(r.said.ReplaceAllString(err.Error(), r.says))
		}
	}
	return err
}

// withRemedy adds to an error of the network which flag names what did not answer.
func withRemedy(err error, command *kong.Context) error {
	// serve connects later, and its listeners are no servers. An error number of a file is a net.Error, too.
	if command.Command() == "serve" || !errors.As(err, new(net.Error)) || errors.As(err, new(*fs.PathError)) {
		return err
	}
	remedy := ""
	for _, flag := range command.Flags() {
		switch {
		case flag.Name == "node":
			remedy = "check that --node names the admin listener of a node, and that it runs"
		case flag.Name == "database-url" && remedy == "", flag.Name == "replication-url" && flag.Target.String() != "": // which commands prefer
			remedy = "check that --" + flag.Name + " names Postgres, and that it runs (`listedge doctor`)"
		}
	}
	if remedy == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, remedy)
}

// reading makes the parser read values of a type by a function. says is the error of a value that
// cannot be read, with a verb for the value.
func reading[T any](parse func(text string) (T, error), says string) kong.Option {
	mapper := kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
		var text string
		if err := ctx.Scan.PopValueInto("value", &text); err != nil {
			return err
		}
		v, err := parse(text)
		switch {
		case err != nil:
			return fmt.Errorf(says, text)
		case target.Kind() == reflect.Pointer:
			target.Set(reflect.ValueOf(&v))
		default:
			target.Set(reflect.ValueOf(v))
		}
		return nil
	})
	return kong.OptionFunc(func(k *kong.Kong) error {
		return errors.Join(kong.TypeMapper(reflect.TypeFor[T](), mapper).Apply(k), kong.TypeMapper(reflect.TypeFor[*T](), mapper).Apply(k))
	})
}

// wholeNumber reads a whole number. kong's own reading takes 010 for 8, and 0x10 and 1_6 for 16.
func wholeNumber[T int | int32](text string) (T, error) {
	n, err := strconv.ParseInt(text, 10, reflect.TypeFor[T]().Bits())
	if err == nil && strconv.FormatInt(n, 10) != text {
		err = strconv.ErrSyntax
	}
	return T(n), err
}

func number(text string) (float64, error) { return strconv.ParseFloat(text, 64) }

func newParser(c *cli, out, errs io.Writer) (parser *kong.Kong, exited *bool) {
	exited = new(bool)
	parser = kong.Must(c,
		kong.Name("listedge"),
		kong.Description("Edge proxy and caching read replica for list APIs."),
		kong.DefaultEnvars(strings.TrimSuffix(envPrefix, "_")),
		kong.WithBeforeResolve(checkVariables),
		kong.Configuration(readConfig),
		kong.Resolvers(kong.ResolverFunc(resolveSecret)),
		reading(wholeNumber[int], "must be a whole number of at most 64 bits in decimal digits, and is %q"),
		reading(wholeNumber[int32], "must be a whole number of at most 32 bits in decimal digits, and is %q"),
		reading(number, "must be a number, and is %q"),
		reading(time.ParseDuration, "must be a duration like 500ms or 2h, and is %q"),
		reading(netip.ParsePrefix, "must be a network like 10.0.0.0/8, and is %q"),
		// %.0s does not show the value, which may be a key.
		reading(uuid.Parse, "must be an id (a UUID), as `listedge workspaces list` and `listedge keys list` print it; a key or a name is none%.0s"),
		kong.Writers(out, errs),
		kong.Exit(func(int) { *exited = true }),
		kong.Vars{"version": versionLine(), "dataDir": defaultDataDir(), "user": audit.SystemUser()},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.ValueFormatter(func(v *kong.Value) string {
			help := kong.DefaultHelpValueFormatter(v)
			if v.HasDefault && v.Tag.PlaceHolder != "" && v.Default != "" { // a placeholder hides the default
				return help + " Default: " + v.Default + "."
			}
			if v.Tag.Has("secret") {
				return strings.TrimSuffix(help, ").") + ", or a file: $" + v.Tag.Envs[0] + fileSuffix + ")."
			}
			return help
		}),
	)
	addExamples(parser.Model)
	return parser, exited
}

// addExamples adds to the help of each command its example, which is a tag of the command.
func addExamples(app *kong.Application) {
	for _, command := range app.Leaves(false) {
		command.Detail = strings.TrimSpace(command.Detail + "\n\nExample:\n\n    " + app.Name + " " + command.Path() + " " + command.Tag.Get("example"))
	}
}

// version is the next release's with -dev, unless the build of a release sets it by
// -ldflags "-X main.version=…".
var version = "0.2.0-dev"

// revision is set by builds without the repository, such as that of the image, by
// -ldflags "-X main.revision=…".
var revision string

// builtFrom returns the revision of the source.
func builtFrom() string {
	if revision != "" {
		return revision
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}

func versionLine() string { return "listedge " + version + " (revision " + builtFrom() + ")" }

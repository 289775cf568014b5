package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"listedge/cmd/listedge/node"
	"listedge/internal/redact"
)

// configFile is the file of --config: YAML or JSON, with the names of the flags. Flags
// and environment override it.
type configFile map[string]configValue

// configValue is the texts of a setting, several if it is a list, as the file has them: 010 is
// neither 8 nor 10. nil = what it has is no value.
type configValue []string

// UnmarshalYAML keeps the texts of a node.
func (v *configValue) UnmarshalYAML(n ast.Node) error {
	nodes := []ast.Node{n}
	if list, ok := n.(*ast.SequenceNode); ok {
		nodes = list.Values
	}
	texts := make(configValue, 0, len(nodes))
	for _, n := range nodes {
		if tag, ok := n.(*ast.TagNode); ok {
			n = tag.Value
		}
		switch n := n.(type) {
		case *ast.LiteralNode: // a text of several lines
			texts = append(texts, n.Value.Value)
		case *ast.NullNode:
			return nil
		case ast.ScalarNode:
			texts = append(texts, n.GetToken().Value)
		default:
			return nil
		}
	}
	*v = texts
	return nil
}

// configFlag is --config, the path of a configFile. kong calls it before it resolves other flags.
type configFlag string

// BeforeResolve reads the file, if there is one.
func (configFlag) BeforeResolve(k *kong.Kong, ctx *kong.Context, at *kong.Path) error {
	path, _ := ctx.FlagValue(at.Flag).(configFlag)
	if path == "" {
		return nil
	}
	file, err := k.LoadConfig(string(path))
	if err == nil {
		ctx.AddResolver(file)
	}
	return err
}

func readConfig(r io.Reader) (kong.Resolver, error) {
	var c configFile
	if err := yaml.NewDecoder(r).Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("--config: %s", oneLine(yaml.FormatError(err, false, false)))
	}
	return c, nil
}

// Validate refuses names that no command has: a typing error must not be ignored.
func (c configFile) Validate(app *kong.Application) error {
	var known []string
	for _, flag := range allFlags(app) {
		known = append(known, flag.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(c)) {
		if !slices.Contains(known, name) {
			return fmt.Errorf("--config: there is no setting %q: `listedge serve --help` has all", name)
		}
	}
	return nil
}

// Resolve gives a flag the value of the file, unless the environment has one.
func (c configFile) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	value, ok := c[flag.Name]
	_, path := secretFile(flag)
	if !ok || path != "" || slices.ContainsFunc(flag.Envs, func(name string) bool { _, set := os.LookupEnv(name); return set }) {
		return nil, nil
	}
	if value == nil {
		return nil, fmt.Errorf("--config: %s: not a value", flag.Name)
	}
	return strings.Join(value, ","), nil
}

// fileSuffix ends the names of environment variables that name a file with a secret.
const fileSuffix = "_FILE"

// secretFile returns the environment variable that may name a file with a secret setting's
// value, and that file.
func secretFile(flag *kong.Flag) (variable, path string) {
	if !flag.Tag.Has("secret") {
		return "", ""
	}
	variable = flag.Envs[0] + fileSuffix
	return variable, os.Getenv(variable)
}

// resolveSecret gives a secret setting the content of its file. A flag overrides both.
func resolveSecret(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	variable, path := secretFile(flag)
	switch {
	case path == "":
		return nil, nil
	case os.Getenv(flag.Envs[0]) != "":
		return nil, fmt.Errorf("the environment has %s and %s: remove one", flag.Envs[0], variable)
	}
	text, err := os.ReadFile(path)
	value := strings.TrimRight(string(text), "\r\n")
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", variable, err)
	case value == "":
		return nil, fmt.Errorf("%s: %s is empty", variable, path)
	}
	return value, nil
}

// settings returns the flags of a command without help, config, print-config and version.
func settings(ctx *kong.Context) []*kong.Flag {
	return slices.DeleteFunc(ctx.Flags(), func(f *kong.Flag) bool {
		return f.Target.Type().PkgPath() == "github.com/alecthomas/kong" || slices.Contains([]string{"help", "config", "print-config"}, f.Name)
	})
}

// printConfig is a flag that prints the settings in effect, as --config reads them,
// without secrets.
type printConfig bool

// AfterApply prints the settings, each with where its value comes from, and ends the program.
func (printConfig) AfterApply(k *kong.Kong, ctx *kong.Context) error {
	inEffect := settingsInEffect(ctx)
	for _, flag := range settings(ctx) { // in their order
		value, set := inEffect[flag.Name]
		if !set {
			continue
		}
		text, err := yaml.Marshal(map[string]any{flag.Name: value})
		if err != nil {
			return err
		}
		fmt.Fprintf(k.Stdout, "%s  # %s\n", visibleLines(strings.TrimSpace(string(text))), source(ctx, flag))
	}
	k.Exit(exitFine)
	return nil
}

// source says where the value of a flag comes from.
func source(ctx *kong.Context, flag *kong.Flag) string {
	variable, path := secretFile(flag)
	switch at := slices.IndexFunc(ctx.Path, func(p *kong.Path) bool { return p.Flag == flag }); {
	case at >= 0 && !ctx.Path[at].Resolved:
		return "flag"
	case path != "":
		return variable
	case at >= 0:
		return "--config"
	case os.Getenv(flag.Envs[0]) != "":
		return flag.Envs[0]
	}
	return "default"
}

// settingsInEffect returns the settings that have a value, without secrets, by the names
// of their flags.
func settingsInEffect(ctx *kong.Context) map[string]any {
	all := map[string]any{}
	for _, flag := range settings(ctx) {
		if value := ctx.FlagValue(flag); !reflect.ValueOf(value).IsZero() || flag.Default != "" {
			all[flag.Name] = printable(flag, value)
		}
	}
	return all
}

// printable returns a setting's value without secrets.
func printable(flag *kong.Flag, value any) any {
	show := func(s string) string { return s }
	if flag.Tag.Has("secret") {
		show = redact.URL
	}
	switch v := value.(type) {
	case []string:
		shown := make([]string, len(v))
		for i := range v {
			shown[i] = show(v[i])
		}
		return shown
	case bool, int, []netip.Prefix:
		return v
	}
	return show(fmt.Sprint(value))
}

// envPrefix is how the names of our environment variables begin.
const envPrefix = "LISTEDGE_"

// inputs returns all values that the user gave by flags, arguments and environment. An
// error may quote any of them; the caller hides secrets in them.
func inputs(args []string) (all []string) {
	for _, given := range slices.Concat(args, os.Environ()) {
		if name, value, _ := strings.Cut(given, "="); strings.HasPrefix(name, "--") || strings.HasPrefix(name, envPrefix) {
			given = value
		}
		all = append(all, given)
	}
	return all
}

// tracingEnabled says whether OpenTelemetry's environment variables name a collector. It warns of
// what the library, which reads the other OTEL_ variables itself, would silently do otherwise.
func tracingEnabled(log *slog.Logger) bool {
	setting := func(name string) string {
		return cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_"+name), os.Getenv("OTEL_EXPORTER_OTLP_"+name))
	}
	endpoint, protocol, exporter := setting("ENDPOINT"), setting("PROTOCOL"), os.Getenv("OTEL_TRACES_EXPORTER")
	if endpoint == "" || exporter == "none" || strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		log.Warn("requests are not traced: OTEL_EXPORTER_OTLP_ENDPOINT or …_TRACES_ENDPOINT is no http:// or https:// URL")
		return false
	}
	if !slices.Contains([]string{"", "http/protobuf", "http/json"}, protocol) {
		log.Warn("traces are sent by http/protobuf, mostly to port 4318, whatever OTEL_EXPORTER_OTLP_PROTOCOL or …_TRACES_PROTOCOL says", "protocol", protocol)
	}
	if exporter != "" && !slices.Contains(strings.Split(exporter, ","), "otlp") {
		log.Warn("traces are sent by OTLP, whatever OTEL_TRACES_EXPORTER says", "exporter", exporter)
	}
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "OTEL_BSP_") {
			log.Warn("how traces are queued and sent is fixed, whatever " + name + " says")
		}
	}
	return true
}

// newNode makes a node, with what the program and the environment say besides its flags.
func newNode(ctx context.Context, o node.Options) (*node.Node, error) {
	o.Traces = tracingEnabled(slog.New(o.Log))
	o.Version, o.Revision, o.NotifySocket = version, builtFrom(), os.Getenv("NOTIFY_SOCKET") // where systemd waits for a unit of Type=notify
	return node.New(ctx, o)
}

// collectorPaceIsSet reports whether the operator has set GOGC, the pace of Go's garbage
// collector.
func collectorPaceIsSet() bool { return os.Getenv("GOGC") != "" }

// serviceLinks matches variables that Kubernetes sets in every container for a Service
// called listedge or listedge-something in the namespace, unless enableServiceLinks is
// false.
var serviceLinks = regexp.MustCompile(`^LISTEDGE_([A-Z0-9_]+_)?` +
	`(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?|PORT=(tcp|udp|sctp)://.*)(=|$)`)

// checkVariables refuses environment variables that no command has: a typing error
// must not be ignored.
func checkVariables(app *kong.Kong, ctx *kong.Context) error {
	if len(settings(ctx)) == 0 { // this command has none
		return nil
	}
	var known []string
	for _, flag := range allFlags(app.Model) {
		variable, _ := secretFile(flag)
		known = append(append(known, flag.Envs...), variable)
	}
	for _, variable := range slices.Sorted(slices.Values(os.Environ())) {
		name, _, _ := strings.Cut(variable, "=")
		switch {
		case !strings.HasPrefix(name, envPrefix), slices.Contains(known, name), serviceLinks.MatchString(variable):
		default:
			return fmt.Errorf("the environment has %s, and there is no such setting: `listedge serve --help` has all", name)
		}
	}
	return nil
}

// allFlags are the flags of all commands.
func allFlags(app *kong.Application) (all []*kong.Flag) {
	for _, command := range append(app.Leaves(false), app.Node) {
		all = append(all, command.Flags...)
	}
	return all
}

// defaultDataDir returns where `dev` keeps its Postgres. For root it is not in the home:
// Postgres then runs as another account, which may not read that.
func defaultDataDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/listedge"
	}
	return filepath.Join(cmp.Or(os.Getenv("HOME"), os.TempDir()), ".local/state/listedge")
}

package main

import (
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/alecthomas/kong"

	"listedge/internal/lists"
)

// examples are command lines. The help of a command shows those that begin with its
// name. They take --database-url from the environment.
var examples = []string{
	"dev",
	"dev --nodes 3",
	"serve --database-url postgres://listedge:secret@db:5432/shop --redis-url redis://:secret@cache:6379",
	"serve --config listedge.yaml --print-config",
	"migrate up",
	"migrate status --json",
	"migrate grants --role listedge_node",
	"migrate drop-slot --region eu",
	"migrate remove --yes",
	"doctor --redis-url redis://:secret@cache:6379 --node http://10.0.0.7:9090",
	"workspaces create --name Shop --rate 100",
	"workspaces list --json",
	"workspaces update 3f0b8a52-5f0e-4c8e-9d0a-2f6f1c1f8a11 --rate 200 --burst 400",
	"workspaces suspend 3f0b8a52-5f0e-4c8e-9d0a-2f6f1c1f8a11",
	"workspaces resume 3f0b8a52-5f0e-4c8e-9d0a-2f6f1c1f8a11",
	"keys create --workspace 3f0b8a52-5f0e-4c8e-9d0a-2f6f1c1f8a11 --name Sync --scopes items:read --expires-in 720h",
	"keys list --workspace 3f0b8a52-5f0e-4c8e-9d0a-2f6f1c1f8a11 --unused-for 90d",
	"keys show 9c1d7f60-02d4-4a35-8f3f-0c8a3f7a5b22",
	"keys update 9c1d7f60-02d4-4a35-8f3f-0c8a3f7a5b22 --rate 20",
	"keys rotate 9c1d7f60-02d4-4a35-8f3f-0c8a3f7a5b22 --overlap 7d",
	"keys revoke 9c1d7f60-02d4-4a35-8f3f-0c8a3f7a5b22",
	"audit --since 7d",
	"audit --workspace 3f0b8a52-5f0e-4c8e-9d0a-2f6f1c1f8a11 --limit 20 --json",
	"usage --workspace 3f0b8a52-5f0e-4c8e-9d0a-2f6f1c1f8a11 --since 7d",
	"purge --workspace 3f0b8a52-5f0e-4c8e-9d0a-2f6f1c1f8a11",
	"purge --all",
	"ready --node http://127.0.0.1:9090 --wait 60s",
	"explain 01JA2B3C4D --node http://10.0.0.7:9090",
	"import items --workspace 3f0b8a52-5f0e-4c8e-9d0a-2f6f1c1f8a11 items.csv",
	"seed --workspaces 10 --items 5000 --contacts 1000",
}

// addExamples adds the examples to the help of each command, and the columns to those of
// import and usage.
func addExamples(app *kong.Application) {
	for _, node := range app.Leaves(false) {
		path := strings.TrimPrefix(node.Path(), app.Name+" ")
		node.Detail = "Example:\n"
		for _, line := range examples {
			if line == path || strings.HasPrefix(line, path+" ") {
				node.Detail += "\n    " + app.Name + " " + line
			}
		}
		switch path {
		case "import":
			node.Detail = importHelp() + "\n\n" + node.Detail
		case "usage":
			node.Detail = usageHelp + "\n\n" + node.Detail
		}
	}
}

// importHelp returns the columns of the files that import reads.
func importHelp() string {
	var all []string
	for _, c := range lists.All {
		var names []string
		for _, column := range c.Columns() {
			names = append(names, column.Field)
		}
		all = append(all, fmt.Sprintf("Columns of %s: %s.", c, strings.Join(names, ", ")))
	}
	return strings.Join(all, "\n\n") + "\n\nThe first line of the file names its columns, in any order; id and name are required. " +
		"Rows are matched by id, which is a UUID: make version 5 UUIDs of other identifiers. " +
		"In rows that exist, columns that the file does not have stay as they are."
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

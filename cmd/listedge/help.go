package main

import (
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/alecthomas/kong"

	"listedge/internal/lists"
)

// addExamples adds to the help of each command its example, which is a tag of the command.
func addExamples(app *kong.Application) {
	for _, command := range app.Leaves(false) {
		command.Detail = strings.TrimSpace(command.Detail + "\n\nExample:\n\n    " + app.Name + " " + command.Path() + " " + command.Tag.Get("example"))
	}
}

// Help names the columns of the files that import reads.
func (importCommand) Help() string {
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

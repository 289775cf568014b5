package main

import (
	"runtime/debug"
	"strings"

	"github.com/alecthomas/kong"
)

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

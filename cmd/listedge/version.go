package main

import "runtime/debug"

// version is that of the last release; the CHANGELOG has what came since.
const version = "0.1.0"

// revision is for builds without the repository, as that of the image:
// -ldflags "-X main.revision=…".
var revision string

// builtFrom is the revision that this program was built from.
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

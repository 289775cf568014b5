package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// version is the first line in which a program tells its version.
func version(program string, argument ...string) string {
	out, err := exec.Command(program, argument...).CombinedOutput()
	if err != nil && len(out) == 0 {
		return "not installed"
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}

// dateOf is the day on which a program on the PATH was packaged, by its file; empty = there is none.
func dateOf(program string) string {
	path, err := exec.LookPath(program)
	if err != nil {
		return ""
	}
	is, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return is.ModTime().UTC().Format(time.DateOnly)
}

// rivals are the servers that listedge is compared with, and the newest release of each that was known on knownOn, by
// the projects' own notes: a report says which of its figures are of an older one.
var rivals = []struct{ name, program, argument, newest string }{
	{"nginx", "nginx", "-v", "1.31.9"},
	{"Varnish, which is called Vinyl Cache since its version 9", "varnishd", "-V", "9.0.3"},
	{"Redis", "redis-server", "--version", "8.10.0"},
}

const knownOn = "2026-11-30"

// rivalsTable tells which servers are compared with, and how old they are. root is what useFetched returned.
func (r *report) rivalsTable(root string) {
	from := "as they are installed"
	if asked, err := os.ReadFile(filepath.Join(filepath.Dir(root), "asked")); root != "" && err == nil {
		from = "the newest that Debian had in any of its suites on " + strings.TrimSpace(string(asked))
	}
	t := r.table("The servers, "+from, "server", "version", "packaged on", "newest known on "+knownOn)
	for _, rival := range rivals {
		is := version(rival.program, rival.argument)
		t.add(rival.name, is, dateOf(rival.program), againstNewest(is, rival.newest))
	}
}

var numbered = regexp.MustCompile(`[0-9]+(\.[0-9]+)+`)

// againstNewest compares what a program says of its version with the newest release.
func againstNewest(version, newest string) string {
	if found := numbered.FindString(version); found != "" && slices.Compare(numbers(found), numbers(newest)) < 0 {
		return newest + ": this one is older"
	}
	return newest
}

// numbers are those of a version, the most significant first.
func numbers(version string) (n []int) {
	for part := range strings.SplitSeq(version, ".") {
		value, _ := strconv.Atoi(part) // numbered found digits
		n = append(n, value)
	}
	return n
}

// useFetched puts the programs that opponents.sh has fetched before those of the machine, and returns the folder that
// they have instead of the root; empty = there are none.
func useFetched(folder string) (root string, err error) {
	folder, err = filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(folder, "asked")); err != nil {
		return "", nil // those of the machine are used
	}
	return filepath.Join(folder, "root"), os.Setenv("PATH", filepath.Join(folder, "bin")+string(os.PathListSeparator)+os.Getenv("PATH"))
}

package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// installRoot is read by deploy/install.sh, not by this program.
const installRoot = envPrefix + "INSTALL_ROOT"

// serviceLinks are the variables that Kubernetes gives every container for each
// Service of its namespace, as long as enableServiceLinks is not false: here
// those of a Service called listedge or listedge-something.
var serviceLinks = regexp.MustCompile(`^LISTEDGE_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?|PORT=(tcp|udp|sctp)://.*)(=|$)`)

// checkVariables refuses environment variables that are nobody's setting: what is
// mistyped must not be passed over. Those of other commands are known.
func checkVariables(app *kong.Kong, ctx *kong.Context) error {
	if len(settings(ctx)) == 0 { // of a command that has none
		return nil
	}
	known := []string{installRoot}
	for _, flag := range allFlags(app.Model) {
		known = append(known, flag.Envs...)
	}
	for _, variable := range slices.Sorted(slices.Values(os.Environ())) {
		name, _, _ := strings.Cut(variable, "=")
		switch {
		case !strings.HasPrefix(name, envPrefix), slices.Contains(known, name), serviceLinks.MatchString(variable):
		default:
			return fmt.Errorf("the environment has %s, and there is no such setting%s", name, didYouMean(name, known))
		}
	}
	return nil
}

// allFlags are those of all commands.
func allFlags(app *kong.Application) (all []*kong.Flag) {
	_ = kong.Visit(app, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok {
			all = append(all, flag)
		}
		return next(nil)
	})
	return all
}

// didYouMean names the known word that is nearest; nothing where none is near.
func didYouMean(word string, known []string) string {
	best, least := "", len(strings.TrimPrefix(word, envPrefix))/3+1
	for _, k := range known {
		if d := distance(word, k); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(": did you mean %s?", best)
}

// distance is how many characters have to be changed, added or taken away to make
// the one word of the other (Levenshtein's).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			changed := diagonal
			if a[i] != b[j] {
				changed++
			}
			diagonal = row[j+1]
			row[j+1] = min(changed, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

package main

import (
	"context"
	"embed"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Completion of the command line. The script for a shell calls the program itself, so
// that completions match this version, also after an upgrade. Scripts are printed;
// no file is changed.

//go:embed completion
var completionScripts embed.FS

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish. Use: source <(listedge completion bash), the same with zsh, or listedge completion fish | source."`
}

// Run prints the script for the shell to source.
func (c *completionCommand) Run(_ context.Context, t *terminal) error {
	script, err := completionScripts.ReadFile("completion/listedge." + c.Shell)
	if err == nil {
		_, err = t.out.Write(script)
	}
	return err
}

// completeCommand is what the scripts call.
type completeCommand struct {
	Words []string `arg:"" optional:"" help:"The words after the program's name up to the cursor; the last may be incomplete or empty."`
}

// Run prints the completions of the last word, one a line: the word, a tab and its
// meaning. It prints nothing where any text may follow, such as the name of a file.
func (c *completeCommand) Run(_ context.Context, t *terminal, k *kong.Kong) error {
	for _, candidate := range completions(k.Model.Node, c.Words) {
		if _, err := fmt.Fprintf(t.out, "%s\t%s\n", candidate.word, oneLine(candidate.meaning)); err != nil {
			return err
		}
	}
	return nil
}

type completion struct{ word, meaning string }

// completions returns the completions of the last word.
func completions(node *kong.Node, words []string) (all []completion) {
	if len(words) == 0 {
		return nil
	}
	var value *kong.Value // of the flag before; the next word is this value
	arguments := 0        // of the command, so far
	for _, word := range words[:len(words)-1] {
		switch name, isFlag := strings.CutPrefix(word, "--"); {
		case value != nil:
			value = nil
		case isFlag:
			if flag := flagOf(node, name); flag != nil && !flag.IsBool() {
				value = flag.Value
			}
		default:
			if child := childOf(node, word); child != nil {
				node = child
			} else {
				arguments++
			}
		}
	}
	last := words[len(words)-1]
	name, begun, assigned := strings.Cut(strings.TrimPrefix(last, "--"), "=")
	switch {
	case value != nil:
		all = valuesOf(value, "")
	case strings.HasPrefix(last, "-") && assigned:
		if flag := flagOf(node, name); flag != nil {
			all = valuesOf(flag.Value, strings.TrimSuffix(last, begun))
		}
	case strings.HasPrefix(last, "-"):
		for _, group := range node.AllFlags(true) {
			for _, flag := range group {
				all = append(all, completion{"--" + flag.Name, flag.Help})
			}
		}
	case len(node.Children) > 0:
		for _, child := range node.Children {
			if !child.Hidden {
				all = append(all, completion{child.Name, child.Help})
			}
		}
	case arguments < len(node.Positional):
		all = valuesOf(node.Positional[arguments], "")
	}
	return slices.DeleteFunc(all, func(c completion) bool { return !strings.HasPrefix(c.word, last) })
}

// valuesOf returns the possible values, each behind the prefix; none if any text is a value.
func valuesOf(v *kong.Value, prefix string) (all []completion) {
	names := v.EnumSlice()
	if _, isLevel := v.Target.Interface().(slog.Level); isLevel {
		names = []string{"debug", "info", "warn", "error"}
	}
	for _, name := range names {
		if name != "" {
			all = append(all, completion{prefix + name, ""})
		}
	}
	return all
}

func childOf(node *kong.Node, name string) *kong.Node {
	if i := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == name }); i >= 0 {
		return node.Children[i]
	}
	return nil
}

func flagOf(node *kong.Node, name string) *kong.Flag {
	for _, group := range node.AllFlags(true) {
		if i := slices.IndexFunc(group, func(f *kong.Flag) bool { return f.Name == name }); i >= 0 {
			return group[i]
		}
	}
	return nil
}

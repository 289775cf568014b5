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

// Completion of the command line: a shell's script is a few lines that ask the
// program itself, so that what is offered is what this program takes, after an
// upgrade too. The scripts are printed and nobody's files are written to.

//go:embed completion
var completionScripts embed.FS

type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish: source <(listedge completion bash), or the same with zsh; listedge completion fish | source."`
}

// Run prints the script for the shell to source.
func (c *completionCommand) Run(_ context.Context, t *terminal) error {
	script, err := completionScripts.ReadFile("completion/listedge." + c.Shell)
	if err == nil {
		_, err = t.out.Write(script)
	}
	return err
}

// completeCommand is what the scripts ask.
type completeCommand struct {
	Words []string `arg:"" optional:"" help:"The words behind the program's name up to the cursor; the last is begun, or empty."`
}

// Run prints what may stand for the last word, a line each: the word, a tab and
// what it means. Nothing is printed where the program cannot tell, of a file's
// name for one.
func (c *completeCommand) Run(_ context.Context, t *terminal, k *kong.Kong) error {
	for _, o := range offers(k.Model.Node, c.Words) {
		if _, err := fmt.Fprintf(t.out, "%s\t%s\n", o.word, oneLine(o.meaning)); err != nil {
			return err
		}
	}
	return nil
}

// offer is a word that may be meant, and what it would mean.
type offer struct{ word, meaning string }

// offers are what may stand for the last of the words.
func offers(node *kong.Node, words []string) (all []offer) {
	if len(words) == 0 {
		return nil
	}
	var value *kong.Value // which the next word is, by its flag
	arguments := 0        // of the node, already there
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
				all = append(all, offer{"--" + flag.Name, flag.Help})
			}
		}
	case len(node.Children) > 0:
		for _, child := range node.Children {
			if !child.Hidden {
				all = append(all, offer{child.Name, child.Help})
			}
		}
	case arguments < len(node.Positional):
		all = valuesOf(node.Positional[arguments], "")
	}
	return slices.DeleteFunc(all, func(o offer) bool { return !strings.HasPrefix(o.word, last) })
}

// valuesOf are the values there are, each behind the prefix; none where they
// are not of a fixed set.
func valuesOf(v *kong.Value, prefix string) (all []offer) {
	names := v.EnumSlice()
	if _, isLevel := v.Target.Interface().(slog.Level); isLevel {
		names = []string{"debug", "info", "warn", "error"}
	}
	for _, name := range names {
		if name != "" {
			all = append(all, offer{prefix + name, ""})
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

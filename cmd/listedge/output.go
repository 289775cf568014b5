package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
	"text/template"
	"text/template/parse"
	"time"
	"unicode"

	"github.com/prometheus/common/model"

	"listedge/cmd/listedge/node"
)

// Exit statuses.
const (
	exitFine   = 0
	exitFailed = 1
	exitUsage  = 2
)

// terminal has the standard streams to which a command writes: output and errors. A node does not
// wait for standard error: it writes to log.
type terminal struct {
	out, err io.Writer
	log      *node.LineQueue
}

// usageError is a wrong flag, argument or setting.
type usageError = node.SettingError

// jsonFlag is --json, of commands whose output programs read.
type jsonFlag struct {
	JSON bool `help:"Print one JSON value."`
}

// print prints what a command has found or made, unless err: with --json v, else the text that
// format makes of it, a template whose tabs begin columns. All that it prints of v is visible.
func (f jsonFlag) print(t *terminal, v any, err error, format string) error {
	if err != nil {
		return err
	}
	if !f.JSON {
		columns := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
		text := template.Must(template.New("").Funcs(formats).Parse(format))
		makeVisible(text.Root)
		err = text.Execute(columns, v)
		if err == nil {
			err = columns.Flush()
		}
	} else if list := reflect.ValueOf(v); list.Kind() == reflect.Slice && list.Len() == 0 {
		_, err = fmt.Fprintln(t.out, "[]") // rather than null
	} else {
		err = json.NewEncoder(t.out).Encode(v)
	}
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// makeVisible adds to each action of a template that what it prints is made visible.
func makeVisible(n parse.Node) {
	var branch *parse.BranchNode
	switch n := n.(type) {
	case *parse.ActionNode:
		n.Pipe.Cmds = append(n.Pipe.Cmds, &parse.CommandNode{NodeType: parse.NodeCommand, Args: []parse.Node{parse.NewIdentifier("visible").SetPos(n.Pos)}})
	case *parse.ListNode:
		if n != nil { // there is an else
			for _, n := range n.Nodes {
				makeVisible(n)
			}
		}
		return
	case *parse.IfNode:
		branch = &n.BranchNode
	case *parse.RangeNode:
		branch = &n.BranchNode
	case *parse.WithNode:
		branch = &n.BranchNode
	}
	if branch != nil {
		makeVisible(branch.List)
		makeVisible(branch.ElseList)
	}
}

// lines is a text that is visible, and has lines of its own.
type lines string

// formats are what templates of print call besides what Go has.
var formats = template.FuncMap{
	"instant": instant,
	"join":    strings.Join,
	"json": func(v any) (string, error) {
		text, err := json.Marshal(v)
		return string(text), err
	},
	"fields": func(v any) (all lines, err error) { // one a line, by their names in JSON
		text, err := json.Marshal(v)
		fields := json.NewDecoder(bytes.NewReader(text))
		_, _ = fields.Token() // the brace
		for err == nil && fields.More() {
			name, _ := fields.Token()
			var value json.RawMessage
			err = fields.Decode(&value)
			shown := string(value)
			if shown != "null" {
				_ = json.Unmarshal(value, &shown) // else it is no text
			}
			all += lines(visible(fmt.Sprintf("%s: %s", name, shown)) + "\n")
		}
		return all, err
	},
	"visible": func(v any) any {
		if text, ok := v.(lines); ok {
			return text
		}
		if p := reflect.ValueOf(v); p.Kind() == reflect.Pointer && !p.IsNil() {
			v = p.Elem().Interface() // as templates print it
		}
		return visible(fmt.Sprint(v))
	},
}

// visible returns a text with \u escapes for what a terminal obeys instead of showing it. Others
// write names and messages: in them it could hide or forge lines of the output.
func visible(text string) string {
	var b strings.Builder
	for _, c := range text { // an invalid byte is U+FFFD
		if unicode.In(c, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Bidi_Control) {
			fmt.Fprintf(&b, `\u%04x`, c)
		} else {
			b.WriteRune(c)
		}
	}
	return b.String()
}

// visibleLines makes a text visible that has lines of its own.
func visibleLines(text string) string {
	all := strings.Split(text, "\n")
	for i := range all {
		all[i] = visible(all[i])
	}
	return strings.Join(all, "\n")
}

func instant(at *time.Time) string {
	if at == nil {
		return "-"
	}
	return at.UTC().Format(time.RFC3339)
}

// checkedWriter keeps the first error of writing: a command whose output is lost
// has failed.
type checkedWriter struct {
	to  io.Writer
	err error
}

func (w *checkedWriter) Write(b []byte) (int, error) {
	n, err := w.to.Write(b)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("write the output: %w", err)
	}
	return n, err
}

// oneLine replaces line breaks and other white space by single spaces, and makes the rest visible.
func oneLine(s string) string { return visible(strings.Join(strings.Fields(s), " ")) }

// period is a positive length of time: 90d, or 12h.
type period time.Duration

// UnmarshalText reads a period.
func (p *period) UnmarshalText(text []byte) error {
	d, err := model.ParseDuration(string(text))
	if err != nil || d == 0 {
		return fmt.Errorf("must be a positive duration like 12h or 7d, and is %q", text)
	}
	*p = period(d)
	return nil
}

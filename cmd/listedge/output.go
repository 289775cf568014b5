package main

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/goccy/go-yaml"

	"listedge/cmd/listedge/node"
)

// Exit statuses.
const (
	exitFine   = 0
	exitFailed = 1
	exitUsage  = 2
)

// terminal has the standard streams to which a command writes: output and errors.
type terminal struct{ out, err io.Writer }

// usageError is a wrong flag, argument or setting.
type usageError = node.SettingError

// jsonFlag is --json, of commands whose output programs read.
type jsonFlag struct {
	JSON bool `help:"Print one JSON value."`
}

// print prints what a command has found or made, unless err: with --json v, else the text that
// format makes of it, a template whose tabs begin columns.
func (f jsonFlag) print(t *terminal, v any, err error, format string) error {
	if err != nil {
		return err
	}
	if !f.JSON {
		columns := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
		if err = template.Must(template.New("").Funcs(formats).Parse(format)).Execute(columns, v); err == nil {
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

// formats are what templates of print call besides what Go has.
var formats = template.FuncMap{
	"instant": instant,
	"join":    strings.Join,
	"json": func(v any) (string, error) {
		text, err := json.Marshal(v)
		return string(text), err
	},
	"yaml": func(v any) (string, error) { // a field a line, by their names in JSON
		text, err := json.Marshal(v)
		if err == nil {
			text, err = yaml.JSONToYAML(text)
		}
		return string(text), err
	},
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

// oneLine replaces line breaks and other white space by single spaces.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

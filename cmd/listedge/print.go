package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// jsonFlag is for commands whose output programs read.
type jsonFlag struct {
	JSON bool `help:"Print one JSON value."`
}

// print writes v as JSON, or has it written for people.
func (f jsonFlag) print(t *terminal, v any, people func()) error {
	if !f.JSON {
		people()
		return nil
	}
	if list := reflect.ValueOf(v); list.Kind() == reflect.Slice && list.Len() == 0 {
		v = []struct{}{} // [] rather than null
	}
	if err := json.NewEncoder(t.out).Encode(v); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

func instant(at *time.Time) string {
	if at == nil {
		return "-"
	}
	return at.UTC().Format(time.RFC3339)
}

// oneLine is the text as it is printed where a line is for one thing.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

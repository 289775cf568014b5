package main

import (
	"context"
	"errors"
	"slices"

	"listedge/cmd/listedge/doctor"
	"listedge/cmd/listedge/node"
	"listedge/internal/list"
)

type doctorCommand struct {
	DatabaseFlags
	ReplicationFlag
	ListsFlag
	node.RegionFlag
	node.ServerFlags
	jsonFlag
	Node []doctor.AdminURL `help:"Admin listeners, as http://10.0.0.7:9090, comma-separated; a name means all its addresses." placeholder:"URL"`
}

var errFindings = errors.New("at least one check failed: see above")

// Validate refuses an environment variable that is empty by mistake.
func (c *doctorCommand) Validate() error {
	if c.Node != nil && len(c.Node) == 0 {
		return errors.New("--node must not be empty")
	}
	return nil
}

// Run checks everything and prints the findings.
func (c *doctorCommand) Run(ctx context.Context, t *terminal) error {
	lists, err := c.Resolve(ctx, c.DatabaseURL)
	var misfits list.Mistakes
	errors.As(err, &misfits)
	if err != nil { // a finding says that Postgres does not answer
		lists = &list.Set{}
	}
	findings, err := doctor.Examine(ctx, node.Options{DatabaseURL: c.DatabaseURL, ReplicationURL: c.ReplicationURL, Lists: lists,
		Flags: node.Flags{RegionFlag: c.RegionFlag, ServerFlags: c.ServerFlags}}, c.Node)
	for _, text := range misfits {
		findings = append(findings, doctor.Finding{Subject: "lists", Level: doctor.Fail, Text: text,
			Remedy: "correct the description or the table; `listedge lists show` says whether they fit"})
	}
	err = c.print(t, findings, err, "{{range .}}{{printf `%-4s  %-26s` .Level .Subject}} {{.Text}}{{with .Remedy}}: {{.}}{{end}}\n{{end}}")
	if err == nil && slices.ContainsFunc(findings, func(f doctor.Finding) bool { return f.Level == doctor.Fail }) {
		err = errFindings
	}
	return err
}

package main

import (
	"context"
	"errors"
	"slices"

	"listedge/cmd/listedge/doctor"
	"listedge/cmd/listedge/node"
)

type doctorCommand struct {
	DatabaseFlags
	ReplicationFlag
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
	findings, err := doctor.Examine(ctx, node.Options{DatabaseURL: c.DatabaseURL, ReplicationURL: c.ReplicationURL,
		Flags: node.Flags{RegionFlag: c.RegionFlag, ServerFlags: c.ServerFlags}}, c.Node)
	err = c.print(t, findings, err, "{{range .}}{{printf `%-4s  %-26s` .Level .Subject}} {{.Text}}{{with .Remedy}}: {{.}}{{end}}\n{{end}}")
	if err == nil && slices.ContainsFunc(findings, func(f doctor.Finding) bool { return f.Level == doctor.Fail }) {
		err = errFindings
	}
	return err
}

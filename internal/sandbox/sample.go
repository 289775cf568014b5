package sandbox

import (
	_ "embed"
	"fmt"
)

//go:embed sample.sql
var sampleSQL string

// Sample returns a script that makes a workspace with sample rows, for a session of its own in
// which each statement is sent as text. Equal arguments make equal rows in every database. Different
// n make different workspaces, of which later ones were created later.
func Sample(n, items, contacts int) string {
	return fmt.Sprintf("%s\nSELECT pg_temp.sample_workspace(%d, %d, %d); COMMIT; ANALYZE;", sampleSQL, n, items, contacts)
}

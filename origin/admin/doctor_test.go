package admin

import (
	"regexp"
	"slices"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
)

// A slot that is followed, or retains much, is in the end-to-end tests.
func TestFindingsOnTheSlot(t *testing.T) {
	t.Parallel()
	url := sandboxtest.PostgresWith(t, map[string]string{"max_slot_wal_keep_size": "1MB"}).URL("postgres")
	for _, c := range []struct {
		name, sql, text string
	}{
		{"none", "SELECT", "there is none: nothing: a node makes it"},
		{"nobody follows", "SELECT pg_create_logical_replication_slot('listedge_' || oid, 'pgoutput') FROM pg_database WHERE datname = current_database()",
			"no node follows it, and it retains [^,]+, of 1024 kB that max_slot_wal_keep_size allows: start a node, or see why none follows; `listedge migrate drop-slot`"},
		{"lost", "SELECT pg_logical_emit_message(false, 'x', 'x'); SELECT pg_switch_wal(); CHECKPOINT",
			"so Postgres invalidated it: nothing: the next follower makes a new one"},
	} {
		t.Run(c.name, func(t *testing.T) {
			execOn(t, url, c.sql)
			found := Diagnose(t.Context(), url, DoctorOptions{Pages: pages})
			i := slices.IndexFunc(found, func(f Finding) bool { return f.Subject == "slot" })
			if i < 0 || found[i].Level != Warn || !regexp.MustCompile(c.text).MatchString(found[i].Text+": "+found[i].Remedy) {
				t.Errorf("%+v", found)
			}
		})
	}
}

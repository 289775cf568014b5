package admin

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"listedge/internal/fleet"
	"listedge/internal/remedy"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/postgres"
)

// A slot that is followed, or retains much, is in the end-to-end tests.
func TestFindingsOnTheSlot(t *testing.T) {
	t.Parallel()
	url := sandboxtest.PostgresWith(t, map[string]string{"max_slot_wal_keep_size": "1MB"}).URL("postgres")
	for _, c := range []struct {
		name, sql, text string
	}{
		{"none", "SELECT", "there is none: start a node"},
		{"nobody follows", "SELECT pg_create_logical_replication_slot('listedge_' || oid, 'pgoutput') FROM pg_database WHERE datname = current_database()",
			"no node follows it, and it retains [^,]+, of 1024 kB that max_slot_wal_keep_size allows: " +
				"start a node, or see why none follows; `listedge migrate drop-slot`"},
		{"lost", "SELECT pg_logical_emit_message(false, 'x', 'x'); SELECT pg_switch_wal(); CHECKPOINT",
			"so Postgres invalidated it: nothing: the next follower makes a new one"},
	} {
		t.Run(c.name, func(t *testing.T) {
			execOn(t, url, c.sql)
			found := Diagnose(t.Context(), url, DoctorOptions{})
			i := slices.IndexFunc(found, func(f Finding) bool { return f.Subject == "slot" })
			if i < 0 || found[i].Level != Warn || !regexp.MustCompile(c.text).MatchString(found[i].Text+": "+found[i].Remedy) {
				t.Errorf("%+v", found)
			}
		})
	}
}

// A server that a node would not use, or not for new pages, has a finding that says why.
func TestReplicasAreCompared(t *testing.T) {
	t.Parallel()
	at := func(timeline uint32, lsn uint64) postgres.WALPosition {
		return postgres.WALPosition{Server: fleet.Server{Timeline: timeline}, LSN: lsn}
	}
	for _, c := range []struct {
		name, why, remedy string
		replica           postgres.WALPosition
	}{
		{"it is level", "", "", at(2, 1<<30)},
		{"it is somewhat behind", "", "", at(2, 1<<30-maxLag)},
		{"it is far behind", "is 64 MiB behind; newer pages", "delays its replay", at(2, 1<<30-maxLag-1)},
		{"the primary was restored", "is 1 B ahead", "make it anew", at(2, 1<<30+1)},
		{"another timeline", "follows /1, and the primary is /2", "make it follow", at(1, 1<<30)},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := compareReplica(c.replica, at(2, 1<<30))
			if c.why == "" && err == nil {
				return
			}
			if why, do := remedy.Explain(err); !strings.Contains(why, c.why) || !strings.Contains(do, c.remedy) || c.why == "" {
				t.Errorf("%s: %s", why, do)
			}
		})
	}
}

package admin

import (
	"strings"
	"testing"
)

func TestFindingsOnTheSlot(t *testing.T) {
	const mebibyte = 1 << 20
	for _, c := range []struct {
		name  string
		facts facts
		level Level
		text  string
	}{
		{"little", facts{Slot: true, Active: true, Retained: 100 * mebibyte, KeepBytes: 1024 * mebibyte}, OK, "of 1024 MiB"},
		{"half of the limit", facts{Slot: true, Active: true, Retained: 50 * mebibyte, KeepBytes: 100 * mebibyte, OldestWriter: "process 7"}, Warn, "process 7"},
		{"much without a limit", facts{Slot: true, Active: true, Retained: 512 * mebibyte, KeepBytes: -1}, Warn, "retains 512 MiB of WAL"},
		{"nobody follows", facts{Slot: true, KeepBytes: -1}, Warn, "drop-slot"},
		{"lost", facts{Slot: true, Lost: true}, Warn, "max_slot_wal_keep_size"},
		{"lost because nobody followed", facts{Slot: true, Lost: true, Idle: true}, Warn, "idle_replication_slot_timeout"},
		{"none", facts{}, Warn, "there is none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if f := judgeSlot(c.facts); f.Level != c.level || !strings.Contains(f.Text+f.Do, c.text) {
				t.Errorf("%+v", f)
			}
		})
	}
}

package changefeed

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// keysHeard is what a listener was told, in short.
type keysHeard struct {
	all   []string
	since time.Time
}

func (h *keysHeard) Changed(c Change) { h.all = append(h.all, fmt.Sprint("changed ", c.XID)) }
func (h *keysHeard) Unproven()        { h.all = append(h.all, "unproven") }
func (h *keysHeard) Proven(since, until time.Time, run string) {
	h.all = append(h.all, strings.TrimSuffix("proven of "+run, " of "))
	h.since = since
}

func keyChange(n, xid uint64) Entry {
	return Entry{Position: Position{1, n}, Change: &Change{XID: xid, Lists: []List{{Workspace: uuid.UUID{1}, Collection: Keys}}}}
}

func echo(term, n uint64, snapshot string, nonce uint64, unsettled ...Change) Entry {
	return Entry{Position: Position{term, n}, Heartbeat: &Heartbeat{Snapshot: snapshot, Nonces: map[string]uint64{"me": nonce}, Unsettled: unsettled}}
}

// of has a heartbeat be another server's.
func of(run string, e Entry) Entry {
	e.Heartbeat.Run = run
	return e
}

func take(term uint64, previous Position) Entry {
	return Entry{Position: Position{term, 1}, TermStart: &TermStart{Previous: previous}}
}

func TestChangesOfKeysAreToldWhenPublishedAndWhenVisible(t *testing.T) {
	items := Change{XID: 7, Lists: []List{{Workspace: uuid.UUID{1}, Collection: Items}}}
	whole := Change{XID: 8, Whole: 1 << Keys}
	for _, c := range []struct {
		name string
		log  []Entry // read one by one; nonces 1 to 9 were probed before
		told []string
	}{
		{"nothing but a proof", []Entry{echo(1, 1, "5:5:", 1)}, []string{"proven"}},
		{"another's probe proves nothing", []Entry{echo(1, 1, "5:5:", 99)}, nil},
		{"a probe proves once", []Entry{echo(1, 1, "5:5:", 2), echo(1, 2, "5:5:", 2), echo(1, 3, "5:5:", 1)}, []string{"proven"}},
		{"a snapshot that cannot be read proves nothing", []Entry{echo(1, 1, "?", 1)}, nil},
		{"a change", []Entry{echo(1, 1, "5:5:", 1), keyChange(2, 6), echo(1, 3, "6:6:", 2), echo(1, 4, "7:7:", 3), echo(1, 5, "7:7:", 4)},
			[]string{"proven", "changed 6", "proven", "changed 6", "proven", "proven"}},
		{"one whose commit hangs", []Entry{echo(1, 1, "5:5:", 1), keyChange(2, 6), echo(1, 3, "6:9:6", 2), echo(1, 4, "9:9:", 3)},
			[]string{"proven", "changed 6", "proven", "changed 6", "proven"}},
		{"one that settles while nothing is proven", []Entry{echo(1, 1, "5:5:", 1), keyChange(2, 6), echo(1, 3, "7:7:", 99)},
			[]string{"proven", "changed 6", "changed 6"}},
		{"those that were unsettled at the join", []Entry{echo(1, 8, "6:6:", 1, *keyChange(0, 6).Change, items, whole), echo(1, 9, "9:9:", 2)},
			[]string{"proven", "changed 6", "changed 8", "proven"}},
		{"those of items", []Entry{{Position: Position{1, 1}, Change: &items}, echo(1, 2, "9:9:", 1)}, []string{"proven"}},
		{"a gap", []Entry{echo(1, 1, "5:5:", 1), echo(1, 3, "5:5:", 2)}, []string{"proven", "unproven"}},
		{"an entry that cannot be read", []Entry{echo(1, 1, "5:5:", 1), {Position: Position{1, 2}}, echo(1, 3, "5:5:", 2)}, []string{"proven", "unproven"}},
		{"another term", []Entry{echo(1, 1, "5:5:", 1), take(2, Position{1, 1}), echo(2, 2, "5:5:", 2)}, []string{"proven", "proven"}},
		{"another term, and something between", []Entry{echo(1, 1, "5:5:", 1), take(2, Position{1, 2})}, []string{"proven", "unproven"}},
		{"another server", []Entry{echo(1, 1, "5:5:", 1), of("another", echo(1, 2, "5:5:", 2))}, []string{"proven", "unproven", "proven of another"}},
		{"entries that are read again", []Entry{echo(1, 1, "5:5:", 1), keyChange(2, 6), echo(1, 1, "5:5:", 2), keyChange(2, 6), echo(1, 3, "7:7:", 3)},
			[]string{"proven", "changed 6", "changed 6", "proven"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			log, told := NewLocal(), &keysHeard{}
			k := FollowKeys(log)
			k.Tell(told)
			if _, err := k.Read(inTime(t), "e", Position{}, 0); err != nil {
				t.Fatal(err)
			}
			for nonce := range uint64(9) {
				if err := k.Probe(inTime(t), "me", 1+nonce); err != nil {
					t.Fatal(err)
				}
			}
			probed := time.Now()
			for i := range c.log {
				k.see(&c.log[i])
			}
			if !slices.Equal(told.all, c.told) {
				t.Errorf("told %q; want %q", told.all, c.told)
			}
			if slices.Contains(told.all, "proven") && told.since.Before(probed) {
				t.Error("proven since before the join was read")
			}
		})
	}
}

// What is read passes through as it is, and a reader that turns to another
// epoch has missed what the old one said last.
func TestKeysAreFollowedThroughARead(t *testing.T) {
	log, told := NewLocal(), &keysHeard{}
	k := FollowKeys(log)
	k.Tell(told)
	follow := func(epoch string, nonce uint64) {
		t.Helper()
		holds(t, k, epoch, Position{})
		if err := k.Probe(inTime(t), "me", nonce); err != nil {
			t.Fatal(err)
		}
		entry := echo(1, 1, "5:5:", nonce)
		add(t, log, epoch, entry)
		holds(t, k, epoch, Position{}, entry)
		holds(t, k, epoch, Position{1, 1})
	}
	follow("one", 1)
	follow("two", 2)
	if want := []string{"proven", "unproven", "proven"}; !slices.Equal(told.all, want) {
		t.Errorf("told %q; want %q", told.all, want)
	}
}

package world

import (
	"fmt"
	"slices"
	"time"

	"listedge/internal/changefeed"
)

// Keys, of which the last Forms are imported, each in a form of its own, and Workspaces: how many rows their tables may have.
const (
	Keys       = 6
	Forms      = 2
	Workspaces = 2
)

// Record is a version of a row of a key, or of a workspace. It is immutable.
type Record struct {
	ID        string    // of the row, a UUID
	Version   int       // no other version of the world has it
	EndsAt    time.Time // the key is revoked, or the workspace suspended, then; zero = never
	Workspace int       // of a key
}

// Accounts is what a snapshot shows of keys and workspaces; nil = there is no such row.
type Accounts struct {
	Keys       [Keys]*Record
	Workspaces [Workspaces]*Record
	Imported   [Forms]bool // the forms of which there was ever a key
}

// The places of keys and workspaces have these instead of a tenant.
const (
	ofKeys = -1 - iota
	ofWorkspaces
)

// String names the version for the trace.
func (r *Record) String() string {
	if r == nil {
		return "none"
	}
	return fmt.Sprintf("version %d of workspace %d, ends %t", r.Version, r.Workspace, !r.EndsAt.IsZero())
}

// set notes a version of a row.
func (a *Accounts) set(at slot, to *Record) {
	if at.tenant == ofWorkspaces {
		a.Workspaces[at.row] = to
		return
	}
	a.Keys[at.row] = to
	form := at.row - (Keys - Forms)
	if to != nil && form >= 0 {
		a.Imported[form] = true
	}
}

// get returns the version of a row.
func (a *Accounts) get(at slot) *Record {
	if at.tenant == ofWorkspaces {
		return a.Workspaces[at.row]
	}
	return a.Keys[at.row]
}

// newRecord makes a version of a row, in place of another; nil = there is none.
func (p *Postgres) newRecord(at slot, before *Record) *Record {
	d := p.dice
	p.versions++
	r := &Record{Version: p.versions, Workspace: d.r.IntN(Workspaces)}
	switch {
	case before != nil && (at.tenant == ofWorkspaces || !d.Chance(12)):
		r.ID = before.ID
	default:
		r.ID = fmt.Sprintf("00000000-0000-4000-8000-%012x", p.versions)
	}
	switch k := d.r.IntN(12); {
	case k < 3:
		r.EndsAt = d.now()
	case k < 5 && d.Happens(schedules, 1):
		r.EndsAt = d.in(20 * boundTicks)
	}
	return r
}

// changeAccounts lets a transaction change some keys or workspaces.
func (p *Postgres) changeAccounts(x *transaction) {
	d := p.dice
	for range 1 + d.r.IntN(2) {
		at := slot{ofKeys, d.r.IntN(Keys)}
		if d.Chance(4) {
			at = slot{ofWorkspaces, d.r.IntN(Workspaces)}
		}
		before := p.logged().get(at)
		var to *Record
		if at.tenant == ofWorkspaces || before == nil || !d.Chance(6) {
			to = p.newRecord(at, before)
		}
		p.write(x, write{slot: at, record: to})
	}
	x.allKeys = d.Happens(unnamed, 12)
}

// touched says which rows of keys and workspaces the transaction changed.
func (x *transaction) touchedAccounts(before *State) (all []changefeed.Touched) {
	for _, w := range x.writes {
		if w.tenant >= 0 {
			continue
		}
		for _, r := range []*Record{before.get(w.slot), w.record} {
			if r != nil && !slices.ContainsFunc(all, func(t changefeed.Touched) bool { return t.Tenant == r.ID }) {
				all = append(all, changefeed.Touched{Table: changefeed.Table{Tenant: r.ID}})
			}
		}
	}
	if x.allKeys {
		all = changefeed.AllRows()
	}
	return all
}

// TouchedSince reports whether a transaction that is in the WAL since then, or was in one that is lost, changed the row of a key
// or of a workspace.
func (p *Postgres) TouchedSince(then time.Time, id string) bool {
	return slices.ContainsFunc(p.touches, func(t touch) bool { return !t.at.Before(then) && (t.id == id || t.id == "") })
}

// touch is a change of keys that the log has.
type touch struct {
	at time.Time
	id string // of the row; empty = any
}

package world

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/internal/page"
)

// State is what a snapshot shows: of each tenant each row, nil where it does not exist.
type State struct {
	Rows [2][Rows]*Version
	Accounts
	LSN uint64 // the highest of a commit that it shows
}

// Moment is a state of the primary, and since when.
type Moment struct {
	From time.Time
	State
}

// Postgres is one database: a primary, and a standby that replays what the primary has flushed, late.
//
// A transaction locks the rows that it changes. Its commit gets a place in the WAL, and it becomes visible later, in
// another order than that of the WAL, before or after the WAL is flushed. A crash loses what is not flushed, and a promotion
// what the standby has not replayed; the next run begins with what is left, all of it visible.
type Postgres struct {
	*Shape
	dice *Dice

	Run      string // of the primary: when it was started
	Timeline int
	runs     int
	runBegan time.Time

	nextXID, completed, flushed, Replayed uint64
	active                                []*transaction
	wal                                   []*transaction // by LSN, from 1
	walStates                             []State        // by LSN: what it shows that shows all up to there
	locks                                 map[slot]*transaction
	Moments                               []Moment           // never empty
	replays                               []Moment           // the states of the WAL, also of what was lost, and since when it has been there
	written                               [2][Rows]time.Time // when a transaction that wrote a row last became visible
	versions                              int
	touches                               []touch
	olds                                  []*OldPrimary
	Old                                   *OldPrimary // the last that was replaced; nil = none was
	flushAt, replaysAt                    time.Time
}

// OldPrimary is one that still runs, as it was when another server was promoted.
type OldPrimary struct {
	Moment   // From: the promotion
	Server   fleet.Server
	Asked    time.Time // when it last answered a page to a node that could not know of another primary
	snapshot changefeed.Snapshot
	until    time.Time // it answers pages until then; zero = it does not
}

// slot is the place of a row: the number of its tenant, and its own. Those of keys have another number there.
type slot struct{ tenant, row int }

// says is what the log says of a transaction's rows.
type says uint8

const (
	sayRows    says = iota
	sayChanged      // what it left as it was is not sent
	sayNoText
	sayNoName
	sayAnyRow // of its tenants
	sayList   // any row of the list
)

type write struct {
	slot
	to     *Version // nil = the row is removed
	record *Record  // instead, of a key or a workspace
}

type transaction struct {
	xid, lsn         uint64 // lsn 0 = its commit is not in the WAL
	writes           []write
	says             says
	allKeys          bool // the log names none of the keys
	async            bool // visible without waiting for the flush
	prepared         bool // outlives a crash
	visible          bool
	commitAt, showAt time.Time
	change           changefeed.Change
}

func newPostgres(of *Shape, d *Dice) *Postgres {
	p := &Postgres{Shape: of, dice: d, nextXID: 700, completed: 699, walStates: []State{{}}, locks: map[slot]*transaction{}}
	for n := range Workspaces {
		p.walStates[0].set(slot{ofWorkspaces, n}, &Record{ID: fmt.Sprintf("00000000-0000-4000-8000-%012x", n), Version: -1 - n})
	}
	p.Moments = []Moment{{d.now(), p.walStates[0]}}
	p.begins(1)
	return p
}

// begins begins a run of a primary.
func (p *Postgres) begins(timeline int) {
	p.runs++
	p.runBegan, p.Timeline, p.Run = p.dice.now(), timeline, fmt.Sprint(1_700_000_000+p.runs)
}

// TimelineName names the system and the timeline.
func (p *Postgres) TimelineName() string { return fmt.Sprint("7400000000000000001/", p.Timeline) }

// Visible is what keys and workspaces are visible.
func (p *Postgres) Visible() *Accounts { return &p.state().Accounts }

// state is what is visible.
func (p *Postgres) state() *State { return &p.Moments[len(p.Moments)-1].State }

// step lets transactions go on.
func (p *Postgres) step() {
	d := p.dice
	if d.Happens(begins, 6) && len(p.active) < 6 {
		p.begin()
	}
	d.shuffle(len(p.active), func(i, j int) { p.active[i], p.active[j] = p.active[j], p.active[i] })
	p.active = slices.DeleteFunc(p.active, func(x *transaction) bool {
		if x.lsn == 0 && d.reached(x.commitAt) {
			if d.Happens(rollsBack, 10) {
				p.end(x)
				d.Tracef("xid %d rolls back", x.xid)
				return true
			}
			p.commit(x)
		}
		if x.lsn == 0 || !d.reached(x.showAt) || !x.async && x.lsn > p.flushed {
			return false
		}
		p.show(x)
		return true
	})
	if d.reached(p.flushAt) {
		p.flushed, p.flushAt = uint64(len(p.wal)), d.in(8)
	}
	if d.reached(p.replaysAt) && p.Replayed < p.flushed {
		p.Replayed += 1 + d.r.Uint64N(p.flushed-p.Replayed)
		p.replaysAt = d.in(4)
		if d.Happens(standbyLags, 50) {
			p.replaysAt = d.in(10 * boundTicks)
		}
	}
	switch {
	case d.Happens(crash, p.crashes()):
		p.restart(p.flushed, p.Timeline)
	case d.Happens(promotion, 5000):
		p.Old = &OldPrimary{Moment: Moment{d.now(), *p.state()}, Server: p.Server(), snapshot: p.snapshot()}
		if d.Happens(livesOn, 2) {
			p.Old.until = d.in(4 * boundTicks)
		}
		p.olds = append(p.olds, p.Old)
		p.restart(p.Replayed, p.Timeline+1)
	}
}

// crashes returns once in how many steps the primary crashes: what has made it crash may do so again once it is back.
func (p *Postgres) crashes() (oneIn int) {
	if p.runs > 1 && p.dice.now().Before(p.runBegan.Add(ticks(boundTicks))) {
		return 150
	}
	return 4000
}

// begin begins a transaction that changes rows of those that are not locked.
func (p *Postgres) begin() {
	d := p.dice
	x := &transaction{xid: p.nextXID, async: d.Chance(3), commitAt: d.in(20)}
	p.nextXID++
	n := 1 + d.r.IntN(2)
	if d.Chance(12) {
		n = Rows
	}
	for range n {
		at := slot{d.r.IntN(len(p.Tenants)), d.r.IntN(Rows)}
		to := p.newVersion(at)
		other := slot{len(p.Tenants) - 1 - at.tenant, at.row}
		switch {
		case d.Chance(5):
			to = nil
		case other != at && d.Chance(10) && p.locks[at] == nil && p.locks[other] == nil: // it moves to another tenant
			p.write(x, write{slot: other, to: to})
			to = nil
		}
		p.write(x, write{slot: at, to: to})
	}
	switch k := d.r.IntN(24); {
	case k < 2 && d.Happens(unnamed, 1):
		x.says = sayNoText + says(d.r.IntN(4))
	case k < 13:
		x.says = sayChanged
	}
	if d.Happens(truncates, 60) {
		x.says = sayList
		for t := range p.Tenants {
			for row := range Rows {
				p.write(x, write{slot: slot{t, row}})
			}
		}
	}
	if d.Happens(changesKeys, 3) {
		p.changeAccounts(x)
	}
	if d.Happens(staysOpen, 60) {
		x.commitAt, x.prepared = d.at(4*boundTicks), d.Chance(2)
	}
	x.showAt = x.commitAt.Add(ticks(d.r.IntN(10)))
	if !x.async && d.Happens(waitsForStandby, 6) {
		x.showAt = x.commitAt.Add(ticks(d.r.IntN(4 * boundTicks)))
	}
	p.active = append(p.active, x)
	d.Tracef("xid %d begins with %d rows, and commits in %s", x.xid, len(x.writes), x.commitAt.Sub(d.now()))
}

// endAll lets all transactions end.
func (p *Postgres) endAll() {
	for _, x := range p.active {
		x.commitAt, x.showAt = p.dice.now(), p.dice.now()
	}
	p.replaysAt = p.dice.now()
}

// Change begins a transaction that changes a row of a tenant that no other has locked, and commits soon.
func (p *Postgres) Change(tenant string) {
	x := &transaction{xid: p.nextXID, commitAt: p.dice.now(), showAt: p.dice.in(8)}
	p.nextXID++
	at := slot{p.tenant(tenant), p.dice.r.IntN(Rows)}
	for tries := 0; p.locks[at] != nil && tries < Rows; tries++ {
		at.row = (at.row + 1) % Rows
	}
	p.write(x, write{slot: at, to: p.newVersion(at)})
	p.active = append(p.active, x)
}

// Quiet reports whether all transactions have ended.
func (p *Postgres) Quiet() bool { return len(p.active) == 0 }

// write gives a row another version, unless it is locked.
func (p *Postgres) write(x *transaction, to write) {
	if p.locks[to.slot] != nil && p.locks[to.slot] != x {
		return
	}
	p.locks[to.slot] = x
	x.writes = slices.DeleteFunc(x.writes, func(w write) bool { return w.slot == to.slot })
	x.writes = append(x.writes, to)
}

// newVersion makes a version of a row. Half of them have the name of the version before.
func (p *Postgres) newVersion(at slot) *Version {
	d := p.dice
	p.versions++
	v := Values{Row: at.row, At: d.r.IntN(4), Name: []string{"a", "b", "b red", "c red"}[d.r.IntN(4)], Version: p.versions,
		Note: []string{"p", "q"}[d.r.IntN(2)], Marked: d.Chance(2)}
	before := p.logged().Rows[at.tenant][at.row]
	if before != nil && d.Chance(2) {
		v.Name = before.Name
	}
	return p.version(v)
}

// logged is what all commits in the WAL have left.
func (p *Postgres) logged() *State { return &p.walStates[len(p.wal)] }

// commit puts the transaction into the WAL.
func (p *Postgres) commit(x *transaction) {
	before := *p.logged()
	next := before
	x.lsn = uint64(len(p.wal) + 1)
	next.LSN = x.lsn
	x.change = changefeed.Change{XID: x.xid, LSN: x.lsn}
	for t, tenant := range p.Tenants {
		touched := changefeed.Touched{Table: changefeed.Table{List: p.List, Tenant: tenant}}
		touches := false
		for _, w := range x.writes {
			if w.tenant != t {
				continue
			}
			touches = true
			row := list.GoneRow(p.version(Values{Row: w.row}).Key())
			if w.to != nil {
				row = p.described(w.to, before.Rows[t][w.row], x.says)
			}
			if x.says < sayAnyRow {
				touched.Rows = append(touched.Rows, row)
			}
			next.Rows[t][w.row] = w.to
		}
		if touches {
			x.change.Touched = append(x.change.Touched, touched)
		}
	}
	if x.says == sayList {
		x.change.Touched = []changefeed.Touched{changefeed.AllRowsOf(p.List)}
	}
	for _, t := range x.touchedAccounts(&before) {
		x.change.Touched = append(x.change.Touched, t)
		p.touches = append(p.touches, touch{p.dice.now(), t.Tenant})
	}
	for _, w := range x.writes {
		if w.tenant < 0 {
			next.set(w.slot, w.record)
		}
	}
	p.wal, p.walStates = append(p.wal, x), append(p.walStates, next)
	p.replays = append(p.replays, Moment{p.dice.now(), next})
	p.dice.Tracef("wal %d: xid %d, %d rows, says %d", x.lsn, x.xid, len(x.writes), x.says)
}

// emit puts a message into the WAL, and flushes that.
func (p *Postgres) emit(touchesAll bool) {
	next, xid := *p.logged(), p.useXID()
	next.LSN = uint64(len(p.wal) + 1)
	x := &transaction{xid: xid, lsn: next.LSN, visible: true, change: changefeed.Change{XID: xid, LSN: next.LSN}}
	if touchesAll {
		x.change.Touched = changefeed.AllRows(p.List)
	}
	p.wal, p.walStates = append(p.wal, x), append(p.walStates, next)
	p.flushed = next.LSN
	p.dice.Tracef("wal %d: a message, xid %d", x.lsn, xid)
}

// useXID uses up the number of a transaction.
func (p *Postgres) useXID() uint64 {
	p.nextXID++
	p.completed = max(p.completed, p.nextXID-1)
	return p.nextXID - 1
}

// catalog is the version of the catalog.
func (p *Postgres) catalog() int { return 1 }

// show makes a transaction visible.
func (p *Postgres) show(x *transaction) {
	next := *p.state()
	for _, w := range x.writes {
		if w.tenant < 0 {
			next.set(w.slot, w.record)
		} else {
			next.Rows[w.tenant][w.row] = w.to
			p.written[w.tenant][w.row] = p.dice.now()
		}
	}
	next.LSN = max(next.LSN, x.lsn)
	x.visible = true
	p.end(x)
	p.become(next)
	p.dice.Tracef("visible: xid %d, wal %d", x.xid, x.lsn)
	for _, w := range x.writes {
		if w.tenant < 0 {
			p.dice.Tracef("row %d of table %d is %s", w.row, w.tenant, w.record)
		}
	}
}

func (p *Postgres) become(s State) {
	p.Moments = append(p.Moments, Moment{p.dice.now(), s})
}

// end releases the locks of a transaction.
func (p *Postgres) end(x *transaction) {
	p.completed = max(p.completed, x.xid)
	for _, w := range x.writes {
		delete(p.locks, w.slot)
	}
}

// restart begins another run of the primary, with the WAL up to a place.
func (p *Postgres) restart(keep uint64, timeline int) {
	p.active = slices.DeleteFunc(p.active, func(x *transaction) bool {
		if x.prepared && x.lsn == 0 {
			return false
		}
		p.end(x)
		return true
	})
	p.wal, p.walStates = p.wal[:keep:keep], p.walStates[:keep+1:keep+1]
	p.nextXID = 700 // the next run knows only of those in its WAL
	for _, x := range slices.Concat(p.wal, p.active) {
		p.nextXID = max(p.nextXID, x.xid+1)
	}
	p.completed = p.nextXID - 1
	p.flushed, p.Replayed = keep, min(p.Replayed, keep)
	p.begins(timeline)
	p.become(*p.logged())
	p.dice.Tracef("the primary begins run %s on timeline %d at %d", p.Run, timeline, keep)
}

// snapshot is pg_current_snapshot().
func (p *Postgres) snapshot() changefeed.Snapshot {
	s := changefeed.Snapshot{Xmax: p.completed + 1}
	for _, x := range p.active {
		if x.xid < s.Xmax {
			s.Running = append(s.Running, x.xid)
		}
	}
	slices.Sort(s.Running)
	s.Xmin = s.Xmax
	if len(s.Running) > 0 {
		s.Xmin = s.Running[0]
	}
	return s
}

// Read is a statement on the primary: rows of the query, and of pages behind it.
func (p *Postgres) Read(q *page.Query, limit int) page.Read {
	read := readOf(p.page(q, p.state(), limit))
	read.At = changefeed.ReadPoint{StartedAt: p.Run, Snapshot: p.snapshot()}
	return read
}

// ReadRows is a statement on the primary: those rows of keys that the query's list has, in the order of the keys, until they have
// so many bytes.
func (p *Postgres) ReadRows(q *page.Query, keys []string, most int) page.Read {
	read := page.Read{End: true, At: changefeed.ReadPoint{StartedAt: p.Run, Snapshot: p.snapshot()}}
	for _, key := range keys {
		v := p.state().Rows[p.tenant(q.Tenant)][p.Number(key)]
		if !has(q, v) {
			continue
		}
		if most < 0 {
			read.End = false
			break
		}
		most -= len(v.Text())
		read.Rows = append(read.Rows, v.Row)
	}
	return read
}

// ReadStandby is a statement on the standby, which had replayed up to a place when it began.
func (p *Postgres) ReadStandby(q *page.Query, limit int, from uint64) page.Read {
	read := readOf(p.page(q, &p.walStates[p.Replayed], limit))
	read.At = changefeed.ReadPoint{Timeline: p.TimelineName(), LSN: min(from, p.Replayed), Through: p.Replayed}
	return read
}

// ReadOld is Read on an old primary. It is not ok if that does not answer any more.
func (p *Postgres) ReadOld(q *page.Query, limit int) (read page.Read, ok bool) {
	if p.Old == nil || p.dice.reached(p.Old.until) {
		return read, false
	}
	read = readOf(p.page(q, &p.Old.State, limit))
	read.At = changefeed.ReadPoint{StartedAt: p.Old.Server.StartedAt, Snapshot: p.Old.snapshot}
	return read, true
}

// WasOld returns the old primary on which the query's page has these rows and no others, of those that may; nil = on none.
func (p *Postgres) WasOld(q *page.Query, texts []string, more bool, may func(*OldPrimary) bool) *OldPrimary {
	for _, o := range p.olds {
		if may(o) && p.same(q, &o.State, texts, more) {
			return o
		}
	}
	return nil
}

func readOf(rows []*Version, more bool) page.Read {
	read := page.Read{End: !more}
	for _, v := range rows {
		read.Rows = append(read.Rows, v.Row)
	}
	return read
}

// Since are the moments back to the one that was then.
func (p *Postgres) Since(from time.Time) iter.Seq[*Moment] {
	return func(yield func(*Moment) bool) {
		for i := len(p.Moments) - 1; i >= 0; i-- {
			m := &p.Moments[i]
			if !yield(m) || !m.From.After(from) {
				return
			}
		}
	}
}

// Was reports whether the query's page had these rows and no others at a moment from then on. ahead: or on the standby, with
// all that was visible then and that no promotion has lost since.
func (p *Postgres) Was(q *page.Query, texts []string, more bool, from time.Time, ahead bool) bool {
	same := func(s *State) bool { return p.same(q, s, texts, more) }
	lsn := p.state().LSN
	for m := range p.Since(from) {
		lsn = min(lsn, m.LSN)
		if same(&m.State) {
			return true
		}
	}
	return ahead && slices.ContainsFunc(p.replays, func(m Moment) bool { return m.LSN >= lsn && same(&m.State) })
}

// same reports whether the query's page of a state has these rows and no others.
func (p *Postgres) same(q *page.Query, s *State, texts []string, more bool) bool {
	rows, is := p.page(q, s, q.Limit)
	return is == more && slices.EqualFunc(rows, texts, func(v *Version, text string) bool { return v.Text() == text })
}

// Lived reports whether a row was the same version, and of the query's list, all the time from then on.
func (p *Postgres) Lived(q *page.Query, v *Version, from time.Time) bool {
	for m := range p.Since(from) {
		if m.Rows[p.tenant(q.Tenant)][v.Values.Row] != v {
			return false
		}
	}
	return has(q, v)
}

// Versions returns what the query's list has had of a row from a moment on: its versions; nil = it did not have the row.
func (p *Postgres) Versions(q *page.Query, row int, from time.Time) (all []*Version) {
	for m := range p.Since(from) {
		v := m.Rows[p.tenant(q.Tenant)][row]
		if !has(q, v) {
			v = nil
		}
		if !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}

// Written reports whether a transaction has written a row of the query's tenant since then.
func (p *Postgres) Written(q *page.Query, row int, since time.Time) bool {
	return p.written[p.tenant(q.Tenant)][row].After(since)
}

// Present returns the versions that a query's list has now.
func (p *Postgres) Present(q *page.Query) []*Version {
	whole := *q
	whole.After = ""
	rows, _ := p.page(&whole, p.state(), Rows)
	return rows
}

// Server is the primary.
func (p *Postgres) Server() fleet.Server {
	return fleet.Server{Identity: fleet.Identity{System: "7400000000000000001", Database: 5, Name: "shop"}, Timeline: uint32(p.Timeline), StartedAt: p.Run}
}

// forget drops what is older than any page may be.
func (p *Postgres) forget(before time.Time) {
	for _, all := range []*[]Moment{&p.Moments, &p.replays} {
		i, _ := slices.BinarySearchFunc(*all, before, func(m Moment, t time.Time) int { return m.From.Compare(t) })
		*all = (*all)[max(0, i-1):]
	}
}

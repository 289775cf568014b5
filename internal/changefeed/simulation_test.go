package changefeed

import (
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// The simulation: a database, servers that keep the log, followers that keep
// their contract, and nodes with the real Subscription. Each process does one
// step at a time, and may be paused between any two. A seed decides everything.
//
// The database: a transaction gets its id, then its commit is in the WAL, the
// WAL is flushed (which is when a follower may decode it), and it becomes
// visible, in any order, before or after the flush.
//
// The log: a fail-over makes a new server of what the old one has, without the
// latest entries. The old one goes on for a while, and followers and nodes may
// still find it. An append may time out, and happen wholly, in part, later or
// never. A server may lose all it has, and entries may be trimmed.
//
// The machines' clocks are years apart, so that comparing two would be noticed.

// simFaults are ways in which a process may break its contract.
type simFaults struct {
	// Of followers.
	twoAtOnce    bool // the next snapshot is taken before this heartbeat is published: none where they say After
	afterItself  bool // After is the heartbeat's own position
	afterQueued  bool // After is the last entry that was queued
	afterLate    bool // After is noted when the heartbeat is sent
	sentTooEarly bool // not everything that the snapshot sees has been decoded
	nothingNamed bool // unsettled changes are not named
	// Of nodes.
	beganLate  bool // a read's start is taken when it returned
	cutProves  bool // a read that was cut at its limit counts
	oneSession bool // another server answers in the same session
}

type simTransaction struct {
	xid, lsn  uint64
	early     bool          // visible without waiting for the flush
	visibleAt time.Duration // 0 = not visible
	over      bool
}

func (x *simTransaction) change() Change { return Change{XID: x.xid, LSN: x.lsn} }

type simServer struct {
	epoch string
	logs  map[string]*localLog
	gone  bool // connections to it end, and no new ones are made
}

func (v *simServer) log(epoch string) *localLog {
	if v.logs[epoch] == nil {
		v.logs[epoch] = &localLog{}
	}
	return v.logs[epoch]
}

// process is a coroutine that does one step at a time.
type process struct {
	pausedTo time.Duration
	resume   func() (struct{}, bool)
	stop     func()
	yield    func(struct{}) bool
}

type killed struct{}

// step lets others act before the process goes on.
func (p *process) step() {
	if !p.yield(struct{}{}) {
		panic(killed{})
	}
}

func start(body func(p *process)) *process {
	p := &process{}
	p.resume, p.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if r := recover(); r != nil && r != (killed{}) {
				panic(r)
			}
		}()
		p.yield = yield
		body(p)
	})
	return p
}

type simulation struct {
	r      *rand.Rand
	now    time.Duration // no two steps happen at the same time
	faults simFaults
	start  time.Time

	nextXID, completed, lsn, flushed uint64
	running, wal, visible            []*simTransaction

	confirmed  uint64       // by the slot
	holder     *simFollower // of the slot
	servers    []*simServer // the last is the master
	late       []lateAppend
	epochs     int
	epochStart map[string]uint64              // everything up to this LSN was visible when the epoch began
	published  map[string]map[uint64]Position // by epoch and xid: where, first

	processes []*process
	wrong     string
	proofs    int
}

type lateAppend struct {
	at      time.Duration
	server  *simServer
	epoch   string
	entries []Entry
}

func (s *simulation) chance(oneIn int) bool { return s.r.IntN(oneIn) == 0 }

func (s *simulation) upTo(d time.Duration) time.Duration {
	return time.Duration(s.r.Int64N(int64(d) + 1))
}

// run plays one seed.
func runSimulation(seed uint64, steps int, faults simFaults) *simulation {
	s := &simulation{r: rand.New(rand.NewPCG(seed, 11)), start: time.Now(), faults: faults, nextXID: 700, completed: 699,
		epochStart: map[string]uint64{}, published: map[string]map[uint64]Position{}}
	s.servers = []*simServer{{logs: map[string]*localLog{}}}
	makers := []func(p *process){s.database}
	for range 3 {
		makers = append(makers, func(p *process) { s.follower(p) })
	}
	for i := range 3 {
		makers = append(makers, func(p *process) { s.node(p, i) })
	}
	for _, m := range makers {
		s.processes = append(s.processes, start(m))
	}
	for range steps {
		s.now += 1 + s.upTo(50*time.Microsecond)
		i := s.r.IntN(len(s.processes))
		if p := s.processes[i]; s.now >= p.pausedTo {
			p.resume()
			if s.chance(150) {
				p.pausedTo = s.now + s.upTo([...]time.Duration{time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond}[s.r.IntN(3)])
			}
		}
		s.accidents(makers)
		if s.wrong != "" {
			s.wrong = fmt.Sprintf("seed %d: %s", seed, s.wrong)
			break
		}
	}
	for _, p := range s.processes {
		p.stop()
	}
	return s
}

// --- the database

func (s *simulation) database(p *process) {
	for ; ; p.step() {
		if len(s.running) < 6 && s.chance(3) {
			s.running = append(s.running, &simTransaction{xid: s.nextXID, early: s.chance(3)})
			s.nextXID++
		}
		if s.chance(3) {
			s.flushed = s.lsn
		}
		if len(s.running) == 0 {
			continue
		}
		i := s.r.IntN(len(s.running))
		switch x := s.running[i]; {
		case x.lsn == 0 && s.chance(10):
			s.finish(x) // rolled back
		case x.lsn == 0:
			s.lsn++
			x.lsn = s.lsn
			s.wal = append(s.wal, x)
		case (x.early || x.lsn <= s.flushed) && s.chance(3):
			s.finish(x)
			x.visibleAt = s.now
			s.visible = append(s.visible, x)
		}
	}
}

func (s *simulation) finish(x *simTransaction) {
	x.over = true
	s.completed = max(s.completed, x.xid)
	s.running = slices.DeleteFunc(s.running, func(x *simTransaction) bool { return x.over })
}

// snapshot is pg_current_snapshot().
func (s *simulation) snapshot() Snapshot {
	is := Snapshot{Xmax: s.completed + 1}
	for _, x := range s.running {
		if x.xid < is.Xmax {
			is.Running = append(is.Running, x.xid)
		}
	}
	slices.Sort(is.Running)
	if is.Xmin = is.Xmax; len(is.Running) > 0 {
		is.Xmin = is.Running[0]
	}
	return is
}

// --- the log

func (s *simulation) master() *simServer { return s.servers[len(s.servers)-1] }

// connect finds the master, or one that was it and does not know better.
func (s *simulation) connect() *simServer {
	if v := s.servers[s.r.IntN(len(s.servers))]; !v.gone && s.chance(4) {
		return v
	}
	return s.master()
}

func (s *simulation) append(v *simServer, epoch string, entries []Entry) (err error) {
	log := v.log(epoch)
	for _, e := range entries {
		if e.Position.Compare(log.last) <= 0 {
			err = ErrFenced
			continue
		}
		log.entries, log.last = append(log.entries, e), e.Position
		if c := e.Change; c != nil {
			if was, ok := s.published[epoch][c.XID]; !ok || e.Position.Compare(was) < 0 {
				s.published[epoch][c.XID] = e.Position
			}
		}
	}
	return err
}

func (v *simServer) since(epoch string, after Position) []Entry {
	entries := v.log(epoch).entries
	i, found := slices.BinarySearchFunc(entries, after, func(e Entry, p Position) int { return e.Position.Compare(p) })
	if found {
		i++
	}
	return entries[i:]
}

// fork is a replica as it is made the master, without the latest entries.
func (v *simServer) fork(lost int) *simServer {
	is := &simServer{epoch: v.epoch, logs: map[string]*localLog{}}
	for epoch, log := range v.logs {
		kept := slices.Clone(log.entries[:len(log.entries)-min(lost, len(log.entries))])
		is.logs[epoch] = &localLog{entries: kept}
		if len(kept) > 0 {
			is.logs[epoch].last = kept[len(kept)-1].Position
		}
	}
	return is
}

func (s *simulation) accidents(makers []func(*process)) {
	s.late = slices.DeleteFunc(s.late, func(a lateAppend) bool {
		if a.at <= s.now {
			_ = s.append(a.server, a.epoch, a.entries)
		}
		return a.at <= s.now
	})
	switch s.r.IntN(4000) {
	case 0: // fail-over
		s.servers = append(s.servers, s.master().fork(s.r.IntN(6)))
	case 1: // the data is lost
		*s.master() = simServer{logs: map[string]*localLog{}}
	case 2, 3: // trimmed
		for _, log := range s.master().logs {
			log.entries = slices.Clone(log.entries[s.r.IntN(len(log.entries)+1):])
		}
	case 4, 5: // Postgres ends the connection of the slot's holder, which may not notice
		s.holder = nil
	case 6, 7: // a process is replaced
		i := 1 + s.r.IntN(len(makers)-1)
		s.processes[i].stop()
		s.processes[i] = start(makers[i])
	case 8, 9: // a former master is found out
		if len(s.servers) > 1 {
			s.servers[0].gone = true
			s.servers = s.servers[1:]
		}
	case 10: // the slot is made anew, once what was running is over
		if len(s.running) == 0 {
			s.holder, s.confirmed = nil, s.lsn
		}
	}
}

// --- a follower

type simFollower struct {
	*simulation
	p        *process
	server   *simServer
	epoch    string
	last     Position // of the newest entry that is known to be in the log
	waiting  []Entry
	decoded  uint64
	named    []*simTransaction // published, and not seen by a snapshot
	pending  *Heartbeat
	snap     Snapshot
	confirms []uint64
}

var errAmbiguous = errors.New("nobody knows")

func (s *simulation) follower(p *process) {
	for ; ; p.step() {
		server := s.connect()
		present := server.epoch
		p.step()
		if s.holder != nil {
			continue
		}
		f := &simFollower{simulation: s, p: p, server: server}
		s.holder = f
		term := s.nextXID
		s.nextXID++
		s.completed = max(s.completed, term)
		confirmed := s.confirmed
		p.step()
		if f.take(term, confirmed, present) == nil {
			f.loop()
		}
		if s.holder == f {
			s.holder = nil
		}
	}
}

func (f *simFollower) take(term, confirmed uint64, present string) error {
	f.decoded, f.epoch = confirmed, present
	var previous Position
	goesOn := false
	if present != "" {
		log := f.server.log(present)
		previous = log.last
		for _, e := range log.entries {
			goesOn = goesOn || e.Heartbeat != nil && e.Heartbeat.LSN >= confirmed || e.Change != nil && e.Change.LSN >= confirmed
		}
	}
	if !goesOn {
		f.epochs++
		f.epoch, previous = fmt.Sprint("epoch ", f.epochs), Position{}
		f.epochStart[f.epoch] = confirmed
		f.published[f.epoch] = map[uint64]Position{}
	}
	f.p.step()
	f.last = Position{Term: term}
	f.queue(Entry{TermStart: &TermStart{Previous: previous}})
	if err := f.publish(); err != nil {
		return err
	}
	f.p.step()
	if f.server.epoch != present && f.server.epoch != "" {
		return ErrSuperseded
	}
	f.server.epoch = f.epoch
	return nil
}

func (f *simFollower) queue(e Entry) {
	e.Position = Position{f.last.Term, f.last.N + uint64(len(f.waiting)) + 1}
	f.waiting = append(f.waiting, e)
}

// publish is what the follower's publish does.
func (f *simFollower) publish() error {
	for tries := 0; len(f.waiting) > 0; tries++ {
		err := f.attempt()
		if err == nil {
			f.shift(len(f.waiting))
			break
		}
		f.p.step()
		if f.chance(2) || f.server.gone {
			f.server = f.connect()
		}
		last := f.server.log(f.epoch).last
		f.p.step()
		switch {
		case last.Compare(f.waiting[len(f.waiting)-1].Position) > 0:
			return ErrFenced
		case last.Compare(f.last) > 0:
			f.shift(int(last.N - f.last.N))
		case tries == 5:
			return errAmbiguous
		}
	}
	return nil
}

func (f *simFollower) shift(n int) {
	f.last.N += uint64(n)
	f.waiting = slices.Clone(f.waiting[n:])
}

// attempt is one call of Append.
func (f *simFollower) attempt() error {
	f.p.step() // on its way
	entries := slices.Clone(f.waiting)
	if !f.chance(40) && !f.server.gone {
		err := f.append(f.server, f.epoch, entries)
		f.p.step() // the answer is
		return err
	}
	switch f.r.IntN(4) {
	case 0: // the answer is lost
		_ = f.append(f.server, f.epoch, entries)
	case 1:
		_ = f.append(f.server, f.epoch, entries[:f.r.IntN(len(entries)+1)])
	case 2: // it is appended after its follower has given up
		f.late = append(f.late, lateAppend{f.now + f.upTo(10*time.Millisecond), f.server, f.epoch, entries})
	}
	f.p.step()
	return errAmbiguous
}

func (f *simFollower) loop() {
	beatAt := f.now
	for ; ; f.p.step() {
		for f.holder == f && f.decoded < f.flushed && !f.chance(3) {
			x := f.wal[f.decoded]
			f.decoded++
			f.named = append(f.named, x)
			c := x.change()
			f.queue(Entry{Change: &c})
		}
		if len(f.waiting) > 0 && f.chance(2) {
			if f.publish() != nil {
				return
			}
		}
		if f.pending == nil && f.now >= beatAt {
			beatAt = f.now + simBeat
			f.prepare()
		}
		if f.pending != nil && (f.decoded >= f.pending.LSN || f.faults.sentTooEarly) {
			if f.send() != nil {
				return
			}
		}
		if f.server.epoch == "" && f.chance(10) {
			f.server.epoch = f.epoch
		}
		if f.chance(100) { // another connection
			f.server = f.connect()
		}
	}
}

// prepare is what prepareHeartbeat does.
func (f *simFollower) prepare() {
	after := f.last
	if f.faults.afterQueued {
		after.N += uint64(len(f.waiting))
	}
	f.p.step() // on its way
	f.snap = f.snapshot()
	f.pending = &Heartbeat{LSN: f.lsn, Snapshot: f.snap.String(), After: after}
	f.p.step() // the answer is
}

func (f *simFollower) send() error {
	h, snapshot := f.pending, f.snap
	f.pending = nil
	if f.faults.twoAtOnce {
		f.prepare()
	}
	f.named = slices.DeleteFunc(f.named, func(x *simTransaction) bool { return snapshot.Sees(x.xid) })
	confirm := h.LSN
	for _, x := range f.named {
		confirm = min(confirm, x.lsn-1)
		if !f.faults.nothingNamed {
			h.Unsettled = append(h.Unsettled, x.change())
		}
	}
	switch {
	case f.faults.afterItself:
		h.After = Position{f.last.Term, f.last.N + uint64(len(f.waiting)) + 1}
	case f.faults.afterLate:
		h.After = f.last
	}
	f.queue(Entry{Heartbeat: h})
	if err := f.publish(); err != nil {
		return err
	}
	if f.confirms = append(f.confirms, confirm); len(f.confirms) > 10 {
		if f.holder == f {
			f.confirmed = max(f.confirmed, min(confirm, f.confirms[0]))
		}
		f.confirms = f.confirms[1:]
	}
	return nil
}

// --- a node

func (s *simulation) node(p *process, i int) {
	l := &simListener{simulation: s, clock: s.start.AddDate(10*i, 0, 0)}
	subscription := NewSubscription(l)
	var server *simServer
	for first := true; ; first = false {
		server = s.connect()
		if first || !s.faults.oneSession {
			subscription.NewSession("")
		}
		p.step()
		for look := true; !server.gone; {
			if look {
				present := server.epoch
				p.step()
				if was, _ := subscription.Next(); present != "" && present != was {
					subscription.Follow(present)
				}
			}
			epoch, after := subscription.Next()
			if epoch == "" {
				break
			}
			began := l.reading()
			p.step() // the command is on its way
			for ends := s.now + 5*time.Millisecond; s.now < ends && len(server.since(epoch, after)) == 0; {
				p.step()
			}
			limit, entries := 1+s.r.IntN(6), slices.Clone(server.since(epoch, after))
			cut := len(entries) >= limit
			if cut {
				entries = entries[:limit]
			}
			for i := range entries {
				if s.chance(1000) { // the entry was damaged, or is of another version
					entries[i] = Entry{Position: entries[i].Position}
				}
			}
			p.step() // the answer is on its way
			if s.chance(60) {
				break
			}
			if s.faults.beganLate {
				began = l.reading()
			}
			subscription.Apply(began, entries, cut && !s.faults.cutProves)
			look = len(entries) == 0 || s.chance(50)
		}
		p.step()
	}
}

// simListener checks what Listener promises.
type simListener struct {
	*simulation
	clock time.Time // what this machine's clock showed at the start

	epoch            string
	changed, settled map[uint64]bool
	joined           time.Duration // 0 = nothing was proven since the last Reset
	checked          int           // so many of those that are visible have been checked since
	moment           time.Duration
}

// reading is one of the machine's clock.
func (l *simListener) reading() time.Time { return l.clock.Add(l.now) }

func (l *simListener) Reset(epoch string, _ ResetCause) {
	l.epoch, l.changed, l.settled, l.joined, l.checked = epoch, map[uint64]bool{}, map[uint64]bool{}, 0, 0
}

func (l *simListener) Changed(_ Position, c *Change) { l.changed[c.XID] = true }

func (l *simListener) Settled(c *Change) {
	l.settled[c.XID] = true
	if !l.changed[c.XID] {
		l.wrong = fmt.Sprintf("transaction %d is settled and was not given to Changed", c.XID)
	}
	if x := l.wal[c.LSN-1]; x.visibleAt == 0 {
		l.wrong = fmt.Sprintf("transaction %d is settled and not visible", c.XID)
	}
}

func (l *simListener) ValidThrough(p Proof) {
	moment := p.Moment.Sub(l.clock)
	l.proofs++
	if moment > l.now || moment < l.moment {
		l.wrong = fmt.Sprintf("moment %s is proven at %s, after %s", moment, l.now, l.moment)
	}
	l.moment = moment
	if l.joined == 0 {
		l.joined = l.now
	}
	for ; l.checked < len(l.visible) && l.visible[l.checked].visibleAt < moment; l.checked++ {
		x := l.visible[l.checked]
		at, ok := l.published[l.epoch][x.xid]
		before := ok && at.Compare(p.First) <= 0 || x.lsn <= l.epochStart[l.epoch]
		switch {
		case l.changed[x.xid] && !l.settled[x.xid]:
			l.wrong = fmt.Sprintf("at %s by %s: transaction %d, visible at %s, is not settled at %s", moment, p.At, x.xid, x.visibleAt, l.now)
		case l.changed[x.xid]:
		case !before:
			l.wrong = fmt.Sprintf("at %s by %s: transaction %d, visible at %s, was neither published by %s nor given to Changed", moment, p.At, x.xid, x.visibleAt, p.First)
		case x.visibleAt > l.joined:
			l.wrong = fmt.Sprintf("at %s by %s: transaction %d, visible at %s and not when this node joined at %s, was not given to Changed", moment, p.At, x.xid, x.visibleAt, l.joined)
		}
	}
}

const (
	simSteps = 8000
	simBeat  = time.Millisecond // between heartbeats
)

// What a proof says is true, whatever happens; and much is proven.
func TestSimulation(t *testing.T) {
	for name, c := range map[string]struct {
		faults simFaults
		seeds  uint64
	}{
		"heartbeats say After":             {simFaults{}, simSeeds},
		"two heartbeats under way at once": {simFaults{twoAtOnce: true}, simSeeds / 4}, // harmless: what each proves rests on its own After
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proofs := 0
			for seed := range c.seeds {
				s := runSimulation(seed, simSteps, c.faults)
				if s.wrong != "" {
					t.Fatal(s.wrong)
				}
				proofs += s.proofs
			}
			t.Logf("%d proofs", proofs)
			if proofs < 20*int(c.seeds) {
				t.Error("little is proven")
			}
		})
	}
}

// The simulation finds each of these violations of the contract.
func TestSimulationFindsFaults(t *testing.T) {
	for name, faults := range map[string]simFaults{
		"After is the heartbeat's own position":                  {afterItself: true},
		"After is queued and not acknowledged":                   {afterQueued: true},
		"After is noted when the heartbeat is sent":              {afterLate: true},
		"the snapshot sees what is published later":              {sentTooEarly: true},
		"unsettled changes are not named":                        {nothingNamed: true},
		"a read begins when it returned":                         {beganLate: true},
		"a read that was cut proves":                             {cutProves: true},
		"reads count although another server answered meanwhile": {oneSession: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(2000) {
				if s := runSimulation(seed, simSteps, faults); s.wrong != "" {
					t.Log(s.wrong)
					return
				}
			}
			t.Error("not found")
		})
	}
}

// The moment of a proof is one of the node's own readings. No entry brings one
// of another machine along.
func TestEntriesHaveNoTimes(t *testing.T) {
	var look func(is reflect.Type)
	look = func(is reflect.Type) {
		if is == reflect.TypeFor[time.Time]() {
			t.Error("an entry has a time")
		}
		switch is.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Array:
			look(is.Elem())
		case reflect.Struct:
			for i := range is.NumField() {
				look(is.Field(i).Type)
			}
		}
	}
	look(reflect.TypeFor[Entry]())
}

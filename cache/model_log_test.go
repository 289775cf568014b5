package cache

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"listedge/cache/replica"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

// take begins a term, and an epoch if one is needed.
func (m *model) take() {
	if m.slot != nil || m.now.Before(m.takenAt) {
		return
	}
	f := &modelFollower{server: m.server, epoch: m.server.epoch, term: m.nextXID, decoded: m.confirmed}
	m.slot, m.followers = f, append(m.followers, f)
	m.nextXID++
	m.completed = max(m.completed, f.term)
	var previous changefeed.Position
	if m.needEpoch || f.epoch == "" || !f.goesOn() {
		m.epochs++
		m.needEpoch, f.epoch = false, fmt.Sprint("epoch ", m.epochs)
	} else {
		previous = f.server.log(f.epoch).last
	}
	f.last, f.first = changefeed.Position{Term: f.term}, changefeed.Position{Term: f.term, N: 1}
	f.queue(changefeed.Entry{TermStart: &changefeed.TermStart{Previous: previous}})
}

// goesOn says whether the log reaches as far as the slot was confirmed.
func (f *modelFollower) goesOn() bool {
	return slices.ContainsFunc(f.server.log(f.epoch).entries, func(e changefeed.Entry) bool {
		return e.Heartbeat != nil && e.Heartbeat.LSN >= f.decoded || e.Change != nil && e.Change.LSN >= f.decoded
	})
}

// endFollower ends a follower. What it has sent may still happen.
func (m *model) endFollower(f *modelFollower) {
	f.ended = true
	if m.slot == f {
		m.slot = nil
	}
	if f.sent > 0 && !f.happened && m.chance(2) {
		m.late = append(m.late, func() { _ = f.server.append(f.epoch, f.waiting[:f.sent]) })
	}
}

func (f *modelFollower) queue(e changefeed.Entry) {
	e.Position = changefeed.Position{Term: f.term, N: f.last.N + uint64(len(f.waiting)) + 1}
	f.waiting = append(f.waiting, e)
}

// follow is a few steps of a follower, which ends where the log refuses it.
func (m *model) follow(f *modelFollower) {
	for !f.ended && !m.now.Before(f.pausedTo) && !m.chance(4) {
		if m.chance(500) {
			f.pausedTo = m.in(2 * modelBound)
		}
		m.followOn(f)
	}
}

func (m *model) followOn(f *modelFollower) {
	switch {
	case f.sent > 0 && f.happened: // it is acknowledged
		f.last, f.waiting = f.waiting[f.sent-1].Position, slices.Clone(f.waiting[f.sent:])
		f.sent, f.happened = 0, false
		if f.last.N == 1 { // the term has begun
			f.server.epoch = f.epoch
		}
		return
	case f.sent > 0:
		if f.happened = f.server.append(f.epoch, f.waiting[:f.sent]); !f.happened {
			m.endFollower(f)
		}
		return
	case f.server != m.server && m.chance(20):
		f.server, f.first = m.server, changefeed.Position{Term: f.term, N: f.last.N + 1}
	}
	for m.slot == f && f.decoded < m.flushed && !m.chance(3) {
		x := m.wal[f.decoded]
		f.decoded++
		f.unsettled = append(f.unsettled, x)
		c := x.change()
		f.queue(changefeed.Entry{Change: &c})
	}
	if m.slot == f && slices.ContainsFunc(m.running, func(x *modelTransaction) bool { return slices.Contains(m.unknown, x.xid) }) {
		f.sent = len(f.waiting) // a slot is not made before these are over
		return
	}
	if f.server.epoch == "" && f.last.N > 0 && m.chance(20) { // the server has lost it
		f.server.epoch = f.epoch
	}
	switch {
	case f.pending == nil && !f.noted && !m.now.Before(f.beatAt):
		f.noted, f.after = true, f.last
		f.beatAt = m.now.Add(10 * time.Millisecond)
	case f.noted:
		f.noted = false
		f.pending = &changefeed.Heartbeat{LSN: uint64(len(m.wal)), Snapshot: m.snapshot().String(), Timeline: "the primary", StartedAt: "run",
			Followed: []*list.List{listtest.Items}, After: f.after}
	case f.pending != nil && f.decoded >= f.pending.LSN:
		m.beat(f)
	}
	if m.chance(2) || f.pending == nil && !f.noted {
		f.sent = len(f.waiting)
	}
}

// beat queues the heartbeat. The next one begins when it is acknowledged.
func (m *model) beat(f *modelFollower) {
	h := f.pending
	s, _ := changefeed.ParseSnapshot(h.Snapshot)
	f.unsettled = slices.DeleteFunc(f.unsettled, func(x *modelTransaction) bool { return s.Sees(x.xid) })
	to := h.LSN
	for _, x := range f.unsettled {
		c := x.change()
		h.Unsettled = append(h.Unsettled, c.Unnamed())
		to = min(to, x.lsn-1)
	}
	if h.LogServer = f.server.name; h.After.Compare(f.first) < 0 {
		h.After = changefeed.Position{}
	}
	f.queue(changefeed.Entry{Heartbeat: h})
	f.sent, f.pending = len(f.waiting), nil
	if m.slot == f {
		m.confirmed = max(m.confirmed, f.confirms)
	}
	f.confirms = to
}

// accidents are what may happen to followers and the log.
func (m *model) accidents() {
	switch log := m.server.log(m.server.epoch); {
	case m.chance(1500) && m.slot != nil: // the follower dies
		m.endFollower(m.slot)
		m.takenAt = m.in(2 * modelBound)
	case m.chance(3000) && m.slot != nil: // it is slow, and overtaken
		m.slot.pausedTo = m.in(2 * modelBound)
		m.slot, m.takenAt = nil, m.in(modelBound)
	case m.chance(4000) && m.slot != nil: // the slot is lost
		m.endFollower(m.slot)
		m.takenAt, m.confirmed, m.needEpoch, m.unknown = m.in(modelBound), m.flushed, true, nil
		for _, x := range m.running {
			m.unknown = append(m.unknown, x.xid)
		}
	case m.chance(300) && len(log.entries) > 0: // trimmed, perhaps under a node that is behind
		log.entries = slices.Clone(log.entries[m.r.IntN(len(log.entries)+1):])
	case m.chance(2500): // the server loses its data
		m.server.epoch, m.server.logs = "", map[string]*modelLog{}
	case m.chance(2500): // a fail-over
		m.names++
		m.server = m.server.fork(fmt.Sprint("server ", m.names), m.r.IntN(6))
		for _, f := range m.followers {
			if m.chance(4) { // else it finds the new master later
				m.endFollower(f)
			}
		}
	case m.chance(5):
		is := m.server.fork(m.mirror.name, m.r.IntN(8))
		if is.log(is.epoch).last.Compare(m.mirror.log(is.epoch).last) > 0 {
			*m.mirror = *is
		}
	}
	for i := len(m.late) - 1; i >= 0; i-- {
		if m.chance(3) {
			m.late[i]()
			m.late = slices.Delete(m.late, i, i+1)
		}
	}
}

// --- a node

// read is a few steps of a node's subscriber.
func (m *model) read(n *modelNode) {
	for !m.now.Before(n.pausedTo) && !m.chance(4) {
		if m.chance(400) {
			n.pausedTo = m.in(modelBound)
		}
		if m.chance(500) || n.server != m.server && m.chance(50) { // the connection ends, and with it a read
			if n.server = m.server; m.chance(5) {
				n.server = m.mirror
			}
			n.reading, n.looked = nil, time.Time{}
			n.subscription.NewSession(n.server.name)
		}
		m.readOn(n)
	}
}

func (m *model) readOn(n *modelNode) {
	switch r := n.reading; {
	case r == nil:
		epoch, after := n.subscription.Next()
		if m.now.Sub(n.looked) > time.Second {
			n.looked = m.now
			if present := n.server.epoch; present != "" && present != epoch {
				n.subscription.Follow(present)
				epoch, after = n.subscription.Next()
			}
		}
		if epoch == "" {
			n.looked = time.Time{}
			return
		}
		n.reading = &modelRead{epoch: epoch, after: after, began: m.now}
	case !r.answered:
		for _, e := range n.server.log(r.epoch).entries {
			if e.Position.Compare(r.after) <= 0 {
				continue
			}
			if m.chance(1500) { // the entry was damaged, or is of another version
				e = changefeed.Entry{Position: e.Position}
			}
			if r.entries = append(r.entries, e); len(r.entries) == 8 {
				r.cut = true
				break
			}
		}
		r.answered = len(r.entries) > 0 || m.now.Sub(r.began) > modelBound/5
	default:
		n.subscription.Apply(r.began, r.entries, r.cut)
		if n.reading = nil; len(r.entries) == 0 {
			n.looked = time.Time{}
		}
	}
}

// serve is what requests and fills of a node do next.
func (m *model) serve(n *modelNode) error {
	n.fills = slices.DeleteFunc(n.fills, func(f *modelFill) bool { return m.proceed(n, f) })
	n.parked = slices.DeleteFunc(n.parked[max(0, len(n.parked)-8):], func(e *Entry) bool { return !e.isPending() })
	for _, e := range n.parked {
		if n.judge(e, m.clock.At(m.now)) != fresh {
			continue
		}
		of, err := 0, error(nil)
		if e.fill.At.Timeline == "" {
			err = m.check(e.fill.Rows)
		} else if of = 1; m.visible() > e.fill.At.Through {
			err = fmt.Errorf("what was visible %s ago is not shown", modelBound)
		}
		if m.ahead[of]++; err != nil {
			return fmt.Errorf("while its rows wait: %w", err)
		}
	}
	_, rows, ok := n.replica.Read(nil, &modelKey, "", modelRows, 1<<20)
	m.asked++
	if err := m.prove(n); err != nil {
		return err
	}
	if ok && n.followed.trusted(m.clock.At(m.now)) {
		m.hits++
		var shown []list.Row
		for _, row := range rows {
			shown = append(shown, *row)
		}
		return m.check(shown)
	}
	if len(n.fills) < 3 {
		n.fills = append(n.fills, m.fill(n))
	}
	return nil
}

// prove is what a request with no-cache does next. Mostly the page is in memory from before.
func (m *model) prove(n *modelNode) error {
	now := m.clock.At(m.now)
	switch {
	case n.asked.IsZero() && m.arrivals.IntN(3) == 0:
		n.asked = m.now
	case n.asked.IsZero():
		return nil
	}
	if n.page == nil || !n.followed.trusted(now) || !n.page.isCurrent() {
		n.page = n.cut(&modelQuery, modelKey, nil, now)
	}
	switch {
	case n.page == nil, m.now.Sub(n.asked) > modelBound/shareFactor: // the primary is asked
	case n.equalled(n.page) >= m.clock.At(n.asked):
		m.proven++
		texts := n.page.texts
		if !m.had(n.asked, func(v []list.Row) bool {
			return slices.EqualFunc(texts, v, func(text string, row list.Row) bool { return text == row.Text() })
		}) {
			return fmt.Errorf("%d rows were not the list since the request arrived %s ago", len(texts), m.now.Sub(n.asked))
		}
	default:
		return nil
	}
	n.asked = time.Time{}
	return nil
}

// had reports whether the database had such a list at some moment since then.
func (m *model) had(since time.Time, such func([]list.Row) bool) bool {
	for _, v := range slices.Backward(m.versions) {
		if such(v.rows) {
			return true
		}
		if v.from.Before(since) {
			break
		}
	}
	return false
}

// fill begins to read from the primary or the standby.
func (m *model) fill(n *modelNode) *modelFill {
	began := m.clock.At(m.now)
	start := n.replica.Begin()
	f := &modelFill{
		began: began, proof: time.Duration(n.followed.proof.Load()), last: n.followed.known.Load().last.LSN, trusted: n.followed.trusted(began),
		Fill:   &replica.Fill{Key: modelKey, Start: start, Read: page.Read{End: true, At: changefeed.ReadPoint{StartedAt: "run", Began: start.At.Began}}},
		readAt: m.in(15 * time.Millisecond),
	}
	if f.ends = f.readAt.Add(time.Duration(m.r.IntN(30)) * time.Millisecond); m.chance(8) {
		f.ends = f.ends.Add(time.Duration(m.r.IntN(240)) * time.Millisecond)
	}
	if f.standby = m.chance(3); f.standby {
		f.At = changefeed.ReadPoint{Timeline: "the primary", LSN: m.replayed}
	}
	return f
}

// proceed reads the rows, and later merges them.
func (m *model) proceed(n *modelNode, f *modelFill) (done bool) {
	if !f.read && !m.now.Before(f.readAt) {
		f.read = true
		f.Rows = m.versions[len(m.versions)-1].rows
		if f.standby {
			f.At.Through = m.replayed
			f.Rows = m.list(func(x *modelTransaction) bool { return x.lsn != 0 && x.lsn <= m.replayed })
		} else {
			f.At.Snapshot = m.snapshot()
		}
	}
	if !f.read || m.now.Before(f.ends) {
		return false
	}
	if n.replica.Merge(f.Fill) == replica.Parked && (!f.standby || f.trusted && f.At.LSN >= f.last) {
		e := entryOf(&modelQuery, &reading{Read: f.Read, readAt: f.began}, f.Fill)
		if f.standby {
			e.Proof = min(e.Proof, f.proof)
		}
		n.parked = append(n.parked, e)
	}
	return true
}

// check is the assertion.
func (m *model) check(rows []list.Row) error {
	if m.had(m.now.Add(-modelBound), func(v []list.Row) bool { return slices.Equal(rows, v) }) {
		return nil
	}
	return fmt.Errorf("%d rows were not the list in the last %s", len(rows), modelBound)
}

// visible is the latest LSN that was visible a bound ago.
func (m *model) visible() (lsn uint64) {
	for _, v := range slices.Backward(m.versions) {
		if lsn = v.lsn; !v.from.After(m.now.Add(-modelBound)) {
			return lsn
		}
	}
	return 0
}

// A page that would be served never omits what was visible a bound ago, and pages would be
// served all the same.
func TestModel(t *testing.T) {
	const seeds, steps = 40, 4000
	var outcomes [replica.Outcomes]uint64
	var hits, asked, proven int
	var ahead [2]int
	for seed := range uint64(seeds) {
		m := newModel(seed)
		for step := range steps {
			if err := m.step(); err != nil {
				t.Fatalf("seed %d, step %d, %v", seed, step, err)
			}
		}
		for _, n := range m.nodes {
			for o, count := range n.replica.Stats().Fills {
				outcomes[o] += count
			}
		}
		hits, asked, proven = hits+m.hits, asked+m.asked, proven+m.proven
		ahead = [2]int{ahead[0] + m.ahead[0], ahead[1] + m.ahead[1]}
	}
	share := float64(hits) / float64(asked)
	t.Logf("hits: %.1f %%; fills: %v; answers whose rows waited: %v; with no-cache: %d", 100*share, outcomes, ahead, proven)
	for o, n := range outcomes {
		if o := replica.Outcome(o); n == 0 != (o == replica.WrongServer || o == replica.Inconsistent || o == replica.Dropped || o == replica.Unfollowed) {
			t.Errorf("%d fills are %s", n, o)
		}
	}
	if share < 0.2 || ahead[0] == 0 || ahead[1] == 0 || proven < 1000 {
		t.Error("too few hits")
	}
}

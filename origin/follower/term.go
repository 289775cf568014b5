package follower

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/list"
)

const (
	// upkeepEvery is how often a term checks its prerequisites.
	upkeepEvery = time.Second
	// replyEvery is the longest time between two replies to Postgres, far below senderTimeout.
	replyEvery = 100 * time.Millisecond
	// callTimeout bounds each call to the log and to the primary.
	callTimeout = time.Second
	// publishTimeout is how long the log may fail before the term ends.
	publishTimeout = time.Second
	// heartbeatEvery is the period of heartbeats. One proves what was visible three periods ago. Until
	// the next comes, that proof gets four periods old: less than a third of the default freshness bound.
	heartbeatEvery = 33 * time.Millisecond
	// proofTakes is how many heartbeats come, at the latest, after a read of the log began and
	// its end was seen, until one proves that moment.
	proofTakes = 3
	// pollPause is the pause between two tries of what takes milliseconds, such as two requests for the
	// walsender's position. A heartbeat that waits so long for it makes the primary flush its WAL.
	pollPause = 3 * time.Millisecond
)

// Changes wait for the next heartbeat, and are appended with it in one step. The log has each
// entry once and in order: it refuses positions that are not above its last, and a term that
// cannot find out what it has appended ends.
const (
	// appendPause is the least time between the snapshots of two heartbeats: there are 250 a second at most. A commit is
	// published at once if none came just before it. Where they come faster, each append
	// costs the nodes and Redis as much as several changes do.
	appendPause = 4 * time.Millisecond
	// batchBytes bounds the changes that wait for the heartbeat that sees them.
	batchBytes = 1 << 20
	// retryFor is how long after it has decoded a commit the follower takes a snapshot every appendPause, to find
	// the commit visible, as most are at once. One that waits for a standby is found by a later heartbeat.
	retryFor = 20 * time.Millisecond
)

// term is the state of a follower while it holds the slot: it publishes commits and heartbeats.
//
// Invariant: a heartbeat comes after all changes up to its LSN, which was read after its
// snapshot was taken. So the log has every change before a heartbeat that sees it.
type term struct {
	*Follower
	primary   Upstream
	server    fleet.Server
	run       Run // of the server: the term ends with it
	epoch     string
	temporary bool         // the slot ends with this term
	version   string       // of the catalog that changes are decoded with
	unnamed   []*list.List // whose changes name no rows

	last         changefeed.Position // of the newest published entry
	acknowledged changefeed.Position // of the newest entry that the log acknowledged at the first attempt; zero = none
	waiting      []changefeed.Entry  // to be published after it
	waitingBytes int
	bytes        int // of entries that this term has published, or that wait

	decoded    pglogrepl.LSN // everything up to here has been received
	confirmed  pglogrepl.LSN // Postgres may release the WAL up to here
	unsettled  unsettled     // published, and no heartbeat's snapshot has seen them
	unlisted   unsettled     // they changed a relation that the catalog did not list, and no view's snapshot has seen them
	history    history
	pending    *changefeed.Heartbeat // the next heartbeat, until its LSN has been decoded; nil = none
	snapshot   changefeed.Snapshot   // the one of pending
	preparedAt time.Time             // when pending was prepared
	flushed    bool                  // WAL was flushed for pending
	early      int                   // so many heartbeats come as soon as they may: a node waits for a proof
	replied    time.Time             // when Postgres was last sent a reply
}

// errPublicationChanged: some commits from before the change may still be invisible, and this slot
// would not publish them. Only the making of a new slot waits until they are visible.
var errPublicationChanged = errors.New("the publication was changed")

// begin publishes the start of the term: in the present epoch if the term continues that, else in a new
// one. fresh: the slot was just made. No epoch has changes of two slots.
func (t *term) begin(ctx context.Context, present string, fresh bool) error {
	xid, confirmed, err := t.primary.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin a term: %w", err)
	}
	t.confirmed = confirmed
	next := fleet.EpochName{Identity: t.server.Digest(), Timeline: t.server.Timeline,
		Instance:  fleet.Digest(t.server.TimelineName() + " " + t.run.CheckpointerStart),
		Published: fleet.Digest(t.run.Published), Random: t.random()}
	t.epoch = present
	var previous changefeed.Position
	continues := false
	switch is, ok := fleet.ParseEpoch(present); {
	case !ok || is.Identity != next.Identity: // of another database, or none
	case next.Timeline < is.Timeline:
		return &fleet.TimelineError{Server: next.Timeline, Fleet: is.Timeline}
	case is.Instance != next.Instance, fresh:
	case is.Published != next.Published:
		return errPublicationChanged
	default:
		previous, continues, err = t.continues(ctx)
		if err != nil {
			return err
		}
	}
	if !continues {
		t.epoch, previous = next.String(), changefeed.Position{}
	}
	t.last = changefeed.Position{Term: xid}
	t.enqueue(changefeed.Entry{TermStart: &changefeed.TermStart{Previous: previous}})
	if err := t.publish(ctx); err != nil {
		return err
	}
	t.remember(ctx, t.confirmed)
	return t.setEpoch(ctx, present)
}

// random returns what no other epoch's name ends with.
func (t *term) random() string {
	if t.options.Random != nil {
		return t.options.Random()
	}
	return rand.Text()[:8]
}

// continues says whether the log of the present epoch reaches up to the LSN that
// the slot was confirmed to, so that the slot's next changes follow without a gap.
// It does not if the slot is new, if somebody advanced the slot, if the log lost its last
// entries, or if the last term ended before its first heartbeat.
func (t *term) continues(ctx context.Context) (last changefeed.Position, yes bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	last, err = t.options.Log.Last(ctx, t.epoch)
	if err != nil {
		return last, false, err
	}
	reader, _, err := t.options.Log.Reader(ctx)
	if err != nil {
		return last, false, err
	}
	defer reader.Close()
	const batch = 200 // the last entries suffice
	entries, _, err := reader.Read(ctx, t.epoch, changefeed.Position{Term: last.Term, N: last.N - min(last.N, batch)}, time.Millisecond)
	if err != nil {
		return last, false, err
	}
	var newest pglogrepl.LSN
	var version string
	for _, e := range entries {
		switch {
		case e.Heartbeat != nil:
			newest, version = max(newest, pglogrepl.LSN(e.Heartbeat.LSN)), e.Heartbeat.Catalog
		case e.Change != nil:
			newest = max(newest, pglogrepl.LSN(e.Change.LSN))
		}
	}
	if newest == 0 {
		return last, false, nil
	}
	if version != t.version { // makes the first heartbeat announce a change of the schema
		t.version = ""
	}
	return last, t.confirmed <= newest, nil
}

// setEpoch names the term's epoch in the log. It fails unless the log still names the epoch from, which was
// read before the slot was taken, or names none because Redis has lost it. So a stalled follower that
// another one has replaced fails, at whatever line it stalled.
func (t *term) setEpoch(ctx context.Context, from string) error {
	return bounded(ctx, func(ctx context.Context) error { return t.options.Log.SetEpoch(ctx, from, t.epoch) })
}

// loop receives and publishes changes and heartbeats until something fails.
func (t *term) loop(ctx context.Context) error {
	now := time.Now()
	heartbeat, ask, upkeep := now, now, now.Add(upkeepEvery)
	t.replied = now
	for ctx.Err() == nil {
		now = time.Now()
		if t.waitingBytes >= batchBytes {
			if err := t.publish(ctx); err != nil {
				return err
			}
		}
		if t.pending == nil && !now.Before(t.nextSnapshot(heartbeat)) {
			heartbeat, ask = now.Add(t.period), now
			if err := t.prepareHeartbeat(ctx); err != nil {
				return err
			}
		}
		if t.pending != nil && t.decoded >= pglogrepl.LSN(t.pending.LSN) {
			if err := t.sendHeartbeat(ctx); err != nil {
				return err
			}
		}
		if t.pending != nil && !t.flushed && now.Sub(t.preparedAt) > pollPause {
			if err := t.flush(ctx); err != nil {
				return err
			}
		}
		if t.pending != nil && !now.Before(ask) || now.Sub(t.replied) >= replyEvery {
			ask = now.Add(pollPause)
			if err := t.reply(t.pending != nil); err != nil {
				return err
			}
		}
		if !now.Before(upkeep) {
			upkeep = now.Add(upkeepEvery)
			if err := t.upkeep(ctx); err != nil {
				return err
			}
		}
		wake := t.nextSnapshot(heartbeat)
		if t.pending != nil {
			wake = ask
		}
		if err := t.receive(ctx, wake); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// receive handles one message, or none until wake.
func (t *term) receive(ctx context.Context, wake time.Time) error {
	m, err := t.primary.Receive(ctx, wake)
	if err != nil {
		return err
	}
	if c := m.Commit; c != nil {
		if c.Unlisted && !t.snapshot.Sees(c.Change.XID) { // else a term that catches up would keep all of them until its next view
			t.unlisted = append(t.unlisted, *c)
		}
		if len(c.Change.Touched) > 0 {
			t.publishChange(*c)
		}
	}
	t.decoded = max(t.decoded, m.Position)
	if m.ReplyRequested {
		return t.reply(false)
	}
	return nil
}

// publishChange publishes a commit. While the commit is unsettled, each heartbeat repeats it,
// and says only which lists it touches: only nodes that have just joined read that, and
// heartbeats stay small. To invalidate too much is safe.
func (t *term) publishChange(c Commit) {
	published := c.Change
	t.enqueue(changefeed.Entry{Change: &published})
	c.Change, c.decoded = c.Change.Unnamed(), time.Now()
	t.unsettled = append(t.unsettled, c)
}

// enqueue gives the entry the term's next position, and lets it wait for publish.
func (t *term) enqueue(e changefeed.Entry) {
	e.Position = changefeed.Position{Term: t.last.Term, N: t.last.N + uint64(len(t.waiting)) + 1}
	t.waiting = append(t.waiting, e)
	size := sizeOf(&e)
	t.waitingBytes += size
	t.bytes += size
}

// nextSnapshot returns when to take the next snapshot: at, or earlier if a change waits, or a node for a proof.
func (t *term) nextSnapshot(at time.Time) time.Time {
	wanted := len(t.waiting) > 0 || t.early > 0
	if n := len(t.unsettled); n > 0 {
		wanted = wanted || t.preparedAt.Sub(t.unsettled[n-1].decoded) < retryFor
	}
	if early := t.preparedAt.Add(appendPause); wanted && early.Before(at) {
		return early
	}
	return at
}

// unsettled are commits that no snapshot has seen yet, in the order of their records.
type unsettled []Commit

// settle drops the commits that the snapshot sees.
func (u *unsettled) settle(snapshot changefeed.Snapshot) {
	*u = slices.DeleteFunc(*u, func(c Commit) bool { return snapshot.Sees(c.Change.XID) })
}

// prepareHeartbeat takes the snapshot of the next heartbeat. It reads the last acknowledged position of
// the log FIRST, as the heartbeat's After. So if a node saw the log end before After, the snapshot sees
// all that was visible at that moment. If the catalog has changed, the snapshot is taken again, and sees
// the message about it: nodes apply that at the heartbeat that sees the change.
func (t *term) prepareHeartbeat(ctx context.Context) error {
	after := t.acknowledged
	v, err := t.primary.View(ctx, t.version)
	if err != nil {
		return err
	}
	t.unlisted.settle(v.Snapshot)
	if v.Version != t.version {
		for _, c := range t.unlisted { // each of them may touch anything
			c.Change.Touched = changefeed.AllRows(t.options.Lists.Lists...)
			t.publishChange(c)
		}
		if err := t.announceSchemaChange(ctx, v); err != nil {
			return err
		}
		return t.prepareHeartbeat(ctx)
	}
	t.pending = &changefeed.Heartbeat{LSN: uint64(v.At), Snapshot: v.Text, Timeline: t.server.TimelineName(), StartedAt: t.server.StartedAt,
		Catalog: t.version, Followed: t.options.Lists.Lists, After: after}
	t.snapshot, t.preparedAt, t.flushed = v.Snapshot, time.Now(), false
	t.update(func() { t.stats.Lag = uint64(max(v.At, t.decoded) - t.decoded) })
	return nil
}

// announceSchemaChange writes the message that touches everything, if the prerequisites still hold.
func (t *term) announceSchemaChange(ctx context.Context, v View) error {
	if err := t.checkPrerequisites(ctx); err != nil {
		return err
	}
	if err := t.primary.Emit(ctx, MessagePrefix, schemaChanged); err != nil {
		return fmt.Errorf("announce a change of the schema: %w", err)
	}
	t.setCatalog(v)
	return nil
}

func (t *term) setCatalog(v View) {
	t.version = v.Version
	t.primary.Use(v)
}

// flush makes the primary flush its WAL, by a record: the walsender sends only flushed WAL, and records that
// no commit waits for (of an open transaction, or of pruning) may stay unflushed for seconds. The record also
// helps if the insert position is just after a page header: none ends there, so it would never be reported.
func (t *term) flush(ctx context.Context) error {
	t.flushed = true
	if err := t.primary.Emit(ctx, "listedge flush", ""); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}

// sendHeartbeat publishes the pending heartbeat, behind the changes that have waited for it.
func (t *term) sendHeartbeat(ctx context.Context) error {
	h, waited := t.pending, time.Since(t.preparedAt)
	t.pending = nil
	t.unsettled.settle(t.snapshot)
	for _, c := range t.unsettled {
		h.Unsettled = append(h.Unsettled, c.Change)
	}
	t.enqueue(changefeed.Entry{Heartbeat: h})
	if err := t.publish(ctx); err != nil {
		return err
	}
	hurried := t.options.Log.Hurried()
	switch {
	case t.early > 0: // those who have asked meanwhile ask again
		t.early--
	case hurried:
		t.early = proofTakes
	}
	t.update(func() { t.stats.LagTime, t.heartbeat = waited, time.Now() })
	t.remember(ctx, pglogrepl.LSN(h.LSN))
	return nil
}

// publish appends the waiting entries to the log, in order and in one step. After an error it
// reads the log's last position to learn whether they were appended.
//
// Entries of a second attempt are not acknowledged: no heartbeat's After names them. The first attempt may
// have appended them to a Redis that was replaced since, and nodes may have read them there earlier.
func (t *term) publish(ctx context.Context) error {
	end := t.waiting[len(t.waiting)-1].Position
	for deadline, again := time.Now().Add(publishTimeout), false; ; again = true {
		err := bounded(ctx, func(ctx context.Context) error { return t.options.Log.Append(ctx, t.epoch, t.waiting...) })
		if errors.Is(err, changefeed.ErrSuperseded) {
			return fmt.Errorf("publish: %w", err)
		}
		last := end
		if err != nil {
			var unknown error
			last, unknown = call(ctx, func(ctx context.Context) (changefeed.Position, error) { return t.options.Log.Last(ctx, t.epoch) })
			if unknown != nil {
				last, err = changefeed.Position{}, errors.Join(err, unknown)
			}
		}
		switch {
		case last.Compare(end) > 0:
			return fmt.Errorf("publish: %w", changefeed.ErrFenced)
		case last == end:
			t.appended()
			if err == nil && !again {
				t.acknowledged = end
			}
			return nil
		case ctx.Err() != nil || time.Now().After(deadline):
			return fmt.Errorf("publish: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollPause):
		}
	}
}

// appended removes the waiting entries: the log has them.
func (t *term) appended() {
	t.update(func() {
		for _, e := range t.waiting {
			if e.Change != nil {
				t.stats.Commits++
			}
		}
	})
	t.last = t.waiting[len(t.waiting)-1].Position
	clear(t.waiting) // frees the rows
	t.waiting, t.waitingBytes = t.waiting[:0], 0
}

// upkeep is what a term does every upkeepEvery.
func (t *term) upkeep(ctx context.Context) error {
	if err := t.checkPrerequisites(ctx); err != nil {
		return err
	}
	s, err := t.primary.Slot(ctx)
	if err != nil {
		return err
	}
	if t.observe(s) != t.temporary {
		return errSlotKind
	}
	if err := t.setEpoch(ctx, ""); errors.Is(err, changefeed.ErrSuperseded) {
		return err
	}
	return nil
}

// checkPrerequisites says whether the term may go on: the prerequisites hold, for
// the same run of the server and the same publication.
func (t *term) checkPrerequisites(ctx context.Context) error {
	run, err := t.primary.Check(ctx)
	if err != nil {
		return err
	}
	if run.CheckpointerStart != t.run.CheckpointerStart || run.Published != t.run.Published {
		return errors.New("the server was restarted, or the publication changed")
	}
	t.nameRows(run)
	return nil
}

// nameRows makes changes name their rows, in the lists whose publication permits it. A dropped index is
// noticed up to upkeepEvery late: meanwhile a transaction could change two rows of the same key.
func (t *term) nameRows(run Run) {
	unnamed := run.publication.unnamed()
	reason, remedy := run.publication.RowsUnnamed()
	if reason != "" && !slices.Equal(unnamed, t.unnamed) {
		t.options.Logger.Warn("the publication "+reason, "do", remedy)
	}
	t.unnamed = unnamed
}

// reply sends the walsender a status update with the confirmed LSN, which never moves back.
// With requestReply the walsender answers with its position.
func (t *term) reply(requestReply bool) error {
	t.replied = time.Now()
	t.confirmed = max(t.confirmed, t.history.confirmable(t.replied, t.unsettled, t.unlisted))
	return t.primary.Reply(pglogrepl.StandbyStatusUpdate{
		WALWritePosition: max(t.decoded, t.confirmed), WALFlushPosition: t.confirmed, WALApplyPosition: t.confirmed, ReplyRequested: requestReply,
	})
}

// remember adds a milestone, and trims the log.
func (t *term) remember(ctx context.Context, lsn pglogrepl.LSN) {
	if !t.history.add(milestone{time.Now(), t.last, t.bytes, lsn}) {
		return
	}
	if before, ok := t.history.trim(t.options.LogKept); ok {
		_ = bounded(ctx, func(ctx context.Context) error { return t.options.Log.Trim(ctx, t.epoch, before) }) // after an error a later call trims
	}
}

const (
	// confirmAfter is how long after publishing an entry Redis may still lose it, in a
	// failover. For that long the slot retains the WAL that the entry was decoded from.
	confirmAfter = 3 * time.Second
	// logBytes bounds the log when many changes are written. A node that is further behind resyncs.
	logBytes = 64 << 20
	// historyEvery and historyBytes bound what is published between two milestones.
	historyEvery = time.Second
	historyBytes = 8 << 20
)

// milestone is how far a term had published at a time.
type milestone struct {
	at       time.Time
	position changefeed.Position // of the last entry
	bytes    int                 // of all entries
	lsn      pglogrepl.LSN       // every change before it was published
}

// history has milestones, oldest first. They say which WAL and entries need not be kept.
type history []milestone

// add adds a milestone unless the last one is recent.
func (h *history) add(m milestone) (added bool) {
	if n := len(*h); n > 0 && m.at.Sub((*h)[n-1].at) < historyEvery && m.bytes-(*h)[n-1].bytes < historyBytes {
		return false
	}
	*h = append(*h, m)
	return true
}

// trim returns the position before which entries can be removed from the log: they are older
// than kept, or about logBytes from the end. ok is false if there are none. It forgets the
// milestones before that, unless confirmable still needs them.
func (h *history) trim(kept time.Duration) (before changefeed.Position, ok bool) {
	times, first := *h, 0
	now := times[len(times)-1]
	for first+1 < len(times) && (now.at.Sub(times[first+1].at) > kept || now.bytes-times[first+1].bytes > logBytes-2*historyBytes) {
		first++
	}
	before, ok = times[first].position, first > 0
	for first > 0 && now.at.Sub(times[first].at) <= confirmAfter {
		first--
	}
	*h = times[first:]
	return before, ok
}

// confirmable returns up to which LSN the slot may release WAL. Everything before it was published more than
// confirmAfter ago, and is visible to a snapshot: the WAL of an unsettled change is retained. So is that of a
// change that no list shows: the next follower may have other lists.
func (h history) confirmable(now time.Time, retained ...unsettled) (to pglogrepl.LSN) {
	for _, m := range slices.Backward(h) {
		if now.Sub(m.at) > confirmAfter {
			to = m.lsn
			break
		}
	}
	for _, u := range retained {
		if len(u) > 0 {
			to = min(to, u[0].Start)
		}
	}
	return to
}

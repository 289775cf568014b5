package cache

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"listedge/internal/boottime"
	"listedge/internal/changefeed"
)

// Follow says how a cache learns of changes in the database.
type Follow struct {
	Log    changefeed.Log
	Node   string        // this node's name among those that probe
	Bound  time.Duration // D: no page served as fresh omits a commit older than this
	Logger *slog.Logger
}

// Mode is what the freshness of pages rests on.
type Mode uint8

// The modes.
const (
	ModeTTL       Mode = iota // pages age: changes cannot be followed
	ModeUntrusted             // changes are followed, but nothing is proven at the moment
	ModeFollowed              // pages are proven
)

func (m Mode) String() string { return [...]string{"ttl", "untrusted", "followed"}[m] }

const (
	// probeEvery is how often a node asks for a proof.
	probeEvery = 50 * time.Millisecond
	// readWait is the longest a read of the log waits; then the epoch is
	// looked at again.
	readWait    = 100 * time.Millisecond
	logTimeout  = 500 * time.Millisecond
	logPause    = 20 * time.Millisecond // after an error, or while there is no epoch
	shareFactor = 4                     // a query's answer may be shared for bound/shareFactor
)

// following keeps a tracker up to date. Its methods may be called on nil,
// which follows nothing.
type following struct {
	*tracker
	options  Follow
	database *changefeed.Followed // that the changes are of
	ttl      atomic.Bool          // changes cannot be followed, for now
	verdicts [verdicts]atomic.Uint64
	beat     atomic.Int64 // when a heartbeat was last read, in nanoseconds since start
	stop     context.CancelFunc
	done     sync.WaitGroup
}

// startFollowing tells changed of every change of a pair, while it holds a
// lock: changed must neither wait nor call back.
func startFollowing(o Follow, database *changefeed.Followed, fill time.Duration, c *boottime.Clock, changed func(*pairState)) *following {
	ctx, stop := context.WithCancel(context.Background())
	f := &following{tracker: newTracker(o.Bound, fill, c), options: o, database: database, stop: stop}
	f.changed = changed
	f.done.Add(2)
	go f.readLog(ctx)
	go f.sendProbes(ctx)
	return f
}

func (f *following) close() {
	if f != nil {
		f.stop()
		f.done.Wait()
	}
}

// on says whether pages are judged by changes and not by age.
func (f *following) on() bool { return f != nil && !f.ttl.Load() }

func (f *following) begin() fillStart {
	if !f.on() {
		return fillStart{at: time.Now()}
	}
	return f.tracker.begin()
}

// fresh is the serving rule. While nothing is proven, or a change is published
// and not yet visible, what was read a moment ago is shared: it omits nothing
// older than that moment.
func (f *following) fresh(p *Page, now time.Time) bool {
	if f.trusted(now) {
		return f.stands(p) || f.revalidate(p) || f.awaited(p) && f.recent(p, now)
	}
	return f.recent(p, now)
}

func (f *following) recent(p *Page, now time.Time) bool {
	return f.clock.Between(p.Proof, now) < f.bound/shareFactor
}

// run is when the primary was started, if anything is known of it.
func (f *following) run() string {
	if !f.on() {
		return ""
	}
	return f.primaryRun(time.Now())
}

// count counts a page that is not kept.
func (f *following) count(v verdict) {
	if f != nil {
		f.verdicts[v].Add(1)
	}
}

// accept decides whether a page may be kept; one of the primary that may not
// is still shared, unless it is foreign.
func (f *following) accept(start fillStart, p *Page, pair changefeed.List, filled *Filled) verdict {
	p.View = View{Run: filled.Run, Server: filled.Server, LSN: filled.LSN}
	if !p.View.standby() {
		var err error
		if p.View.Snapshot, err = changefeed.ParseSnapshot(filled.Snapshot); err != nil {
			return unseen
		}
	}
	v := foreign
	if f.database.OldTimeline() == nil || f.follows(&p.View) {
		v = f.tracker.accept(start, p, pair)
	}
	f.verdicts[v].Add(1)
	return v
}

// readLog applies the log of the present epoch, entry by entry.
func (f *following) readLog(ctx context.Context) {
	defer f.done.Done()
	for ctx.Err() == nil {
		if err := f.readSome(ctx); err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(logPause):
			}
		}
	}
}

func (f *following) readSome(ctx context.Context) error {
	calling, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	present, err := f.options.Log.Epoch(calling)
	if err != nil {
		return err
	}
	if present != "" && f.database.See(present) { // else it was lost, and goes on until another is named
		f.turnTo(present)
	}
	epoch, after := f.at()
	if epoch != "" && !f.database.See(epoch) { // this node's server is not, or no longer, the one that it is about
		f.turnTo("")
		return errNoEpoch
	}
	if epoch == "" {
		return errNoEpoch
	}
	entries, err := f.options.Log.Read(calling, epoch, after, readWait)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Heartbeat != nil {
			f.beat.Store(int64(time.Since(f.start)))
		}
		if !f.apply(epoch, f.options.Node, e) {
			f.options.Logger.Warn("a gap in the log of changes, or an entry that this version cannot read: beginning anew", "after", after.String(), "found", e.Position.String())
			break
		}
	}
	return nil
}

// sendProbes chooses a nonce every so often; a heartbeat that echoes it is a
// proof about the moment before it was sent.
func (f *following) sendProbes(ctx context.Context) {
	defer f.done.Done()
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for nonce := rand.Uint64() >> 1; ; nonce++ {
		f.probe(nonce)
		calling, cancel := context.WithTimeout(ctx, logTimeout)
		_ = f.options.Log.Probe(calling, f.options.Node, nonce) // unsent, it is never echoed
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// silence is how long no heartbeat has been read.
func (f *following) silence() time.Duration {
	return time.Since(f.start) - time.Duration(f.beat.Load())
}

func (f *following) describe(s *Stats) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.ProofAge = f.clock.Now() - time.Duration(f.proof.Load())
	s.Bound = f.bound
	s.Epoch, s.Lag = f.epoch, f.lag.histogram()
	s.Applied, s.Pairs = f.sequence, len(f.pairs.known)
	s.Resyncs = map[string]uint64{}
	s.Refused = map[string]uint64{}
	for v := kept + 1; v < verdicts; v++ {
		s.Refused[v.String()] = f.verdicts[v].Load()
	}
	for cause := range resyncCauses {
		s.Resyncs[cause.String()] = f.resyncs[cause]
	}
}

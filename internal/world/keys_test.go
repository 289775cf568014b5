package world_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"
	"unique"

	"github.com/google/uuid"

	"listedge/internal/changefeed"
	"listedge/internal/world"
	"listedge/origin/apikey"
	"listedge/origin/postgres"
)

// nodeKeys is the cache of keys of a node. The value of an entry is the version of its row.
type nodeKeys struct {
	*apikey.Cache[int]
	run     *run
	node    *node
	inVain  time.Time // until then look-ups fail
	how     failing
	lookups []*lookup        // those that ended less than a grace ago, and those under way
	wrong   time.Time        // since when no answer was the primary's; zero = the last one was
	noForms time.Time        // when the forms could not be read
	stepped time.Time        // when its clock was last set, or its machine slept
	beats   []proven         // those that proved something
	resets  []time.Time      // of what it knows of the log, and the first heartbeat after each
	joins   bool             // there was no heartbeat since the last of them
	touched []touch          // what the log has told it of rows
	good    [world.Keys]good // what it knows of each key

	connections [2]apikey.LastKey
	entries     [world.Keys]*apikey.Entry[int] // the last that requests got; nil = none, or the key was unknown since
	readForms   time.Time                      // when the forms were last read, also in vain
	formsAt     time.Time                      // when they were last read, of this server
	formsOf     string
	madeUp      float64   // look-ups of keys that were made up, less those that may be made meanwhile
	madeUpAt    time.Time // when the last of them ended
}

// failing is how look-ups fail.
type failing uint8

const (
	refused failing = iota
	hung
	byStandby
	byOldPrimary // which still runs
	failings
)

// lookup is a statement that looks keys up.
type lookup struct {
	keys         []int // their numbers
	run          string
	began, ended time.Time // ended: zero = it is under way
	old          bool      // the old primary has answered
	found        map[apikey.Hash]apikey.Key
	err          error
}

// proven is a proof that a node has read, of the server that was started at run.
type proven struct {
	at, moment time.Time
	run        string
}

// touch is a change of rows that a node has read of.
type touch struct {
	at  time.Time
	row string // empty = any
}

// good is the last answer that was surely right at most a second before the request came.
type good struct {
	at  time.Time
	key apikey.Key
}

// keyGrace is --key-grace. The others are bounds of docs/GUARANTEES.md.
const (
	keyGrace  = 9 * time.Second
	keyBound  = time.Second
	slowBound = 5 * time.Second
	// pause is how long no request waits after one that has waited in vain, and how long that may have waited after a slow look-up.
	pause = 1200 * time.Millisecond
	// quick is a look-up that no request gives up. It may wait for another.
	quick = 90 * time.Millisecond
	// slow is one that no request gives up for an answer of before slowBound.
	slow = 600 * time.Millisecond
	// refreshes is how often a node reads what it does not follow.
	refreshes = 400 * time.Millisecond
	// madeUpRate is how many statements a second, and at once, keys that were made up may cost.
	madeUpRate, madeUpBurst = 50, 50
)

// keyForms are the forms of the imported keys.
var keyForms = [world.Forms]apikey.Form{{Digest: apikey.SHA256}, {Digest: apikey.SHA512, Behind: "|"}}

// shortest and longest are imported keys, of as few and as many bytes as they may have.
var shortest, longest = []byte("8 bytes!"), slices.Concat([]byte("7|another|secret "), bytes.Repeat([]byte("s"), 512-17))

// keyTexts and keyHashes are of all worlds: nothing depends on what they are.
var keyTexts, keyHashes = func() (texts [world.Keys][]byte, hashes [world.Keys]apikey.Hash) {
	plain, behind := sha256.Sum256(shortest), sha512.Sum512(longest[2:])
	for n := range texts {
		texts[n] = []byte(apikey.Generate())
		hashes[n], _ = apikey.HashOf(texts[n])
	}
	var err [2]error
	texts[world.Keys-2], texts[world.Keys-1] = shortest, longest
	hashes[world.Keys-2], err[0] = apikey.SHA256.Parse(hex.EncodeToString(plain[:]))
	hashes[world.Keys-1], err[1] = apikey.SHA512.Parse(hex.EncodeToString(behind[:]))
	if errors.Join(err[:]...) != nil {
		panic(err)
	}
	return texts, hashes
}()

// madeUpTexts are no keys, and may be some. malformed may not; one has the bytes of the digest of a key.
var (
	madeUpTexts = [...][]byte{[]byte(apikey.Generate()), []byte("of no one|else"), []byte(apikey.Generate()), []byte("of no one|")}
	malformed   = func() [][]byte {
		digest := sha512.Sum512(longest[2:])
		return [][]byte{make([]byte, len(keyTexts[0])), digest[:], []byte("7 bytes"), slices.Concat(longest, []byte("s")), []byte("a\tsecret"), nil}
	}()
)

// mayBeAsked are the hashes of all texts that may be keys.
var mayBeAsked = func() map[apikey.Hash]bool {
	all := map[apikey.Hash]bool{}
	for _, text := range slices.Concat(keyTexts[:], madeUpTexts[:]) {
		hash, ours := apikey.HashOf(text)
		_, behind, _ := bytes.Cut(text, []byte("|"))
		long := sha512.Sum512(behind)
		if !ours {
			hash = sha256.Sum256(text)
			all[sha256.Sum256(long[:])] = len(behind) > 0
		}
		all[hash] = true
	}
	return all
}()

func (w *run) newKeys(n *node) *nodeKeys {
	k := &nodeKeys{run: w, node: n}
	k.Cache = apikey.NewCache(k.lookup, k.forms, func(key apikey.Key, version *int) { *version = int(key.Limit.Version) }, keyGrace, n.machine.Clock)
	return k
}

// stepKeys is what happens to a node's keys in a step.
func (w *run) stepKeys(n *node) {
	k := n.keys
	if w.Happens(world.LooksInVain, 1500) {
		k.inVain, k.how = w.Now().Add(w.In(2500)*max(1, w.pace/2)), failing(w.Rand().IntN(int(failings)))
		w.Tracef("look-ups of %s fail until %s, in way %d", n, k.inVain.Sub(w.Now()), k.how)
	}
	if w.Happens(world.Deafens, 1500) {
		d := w.In(2000)
		n.redis.Deafen(d)
		w.Tracef("%s reads no log for %s", n, d)
	}
	if w.Happens(world.Uses, 3) {
		w.use(n)
	}
	if w.Happens(world.Mistypes, 20) {
		w.mistype(n)
	}
	if w.Happens(world.Floods, 3000) {
		w.flood(n)
	}
	past := w.Now().Add(-2 * keyGrace)
	k.lookups = slices.DeleteFunc(k.lookups, func(l *lookup) bool { return !l.ended.IsZero() && l.ended.Before(past) })
	k.beats = slices.DeleteFunc(k.beats, func(b proven) bool { return b.at.Before(past) })
	k.touched = slices.DeleteFunc(k.touched, func(t touch) bool { return t.at.Before(past) })
	k.resets = slices.DeleteFunc(k.resets, func(t time.Time) bool { return t.Before(past) })
}

// use is a request with a key. Some keys are used more often than others.
type use struct {
	node           *node
	n              int // of the key
	arrived, ended time.Time
	entry          *apikey.Entry[int]
	err            error
}

func (w *run) use(n *node) {
	u := &use{node: n, n: (bits.TrailingZeros32(w.Rand().Uint32()) + n.number) % world.Keys, arrived: w.Now()}
	connection := &n.keys.connections[w.Rand().IntN(len(n.keys.connections))]
	w.request(func() {
		u.entry, u.err = n.keys.Authenticate(time.Now(), keyTexts[u.n], connection, func() bool { return false })
		u.ended = w.Now()
	}, func() { w.judgeKey(u) })
}

// mistype sends what cannot be a key, by a connection of others or a new one.
func (w *run) mistype(n *node) {
	r := w.Rand()
	last := &n.keys.connections[r.IntN(len(n.keys.connections))]
	text := malformed[r.IntN(len(malformed))]
	if text == nil || w.Chance(3) {
		text = slices.Clone(keyTexts[r.IntN(world.Keys-world.Forms)])
		text[len(text)-1] ^= 1
	} else if w.Chance(2) {
		last = new(apikey.LastKey)
	}
	var err error
	w.request(func() {
		_, err = n.keys.Authenticate(time.Now(), text, last, func() bool { return false })
	}, func() {
		w.counts["malformed keys"]++
		if !errors.Is(err, apikey.ErrMalformed) {
			w.breaks(whoGetsPages, "%s has for %q: %v", n, text, err)
		}
	})
}

// flood sends made-up keys for a second, each once the one before has been answered.
func (w *run) flood(n *node) {
	until := w.Now().Add(time.Second)
	for i := range madeUpTexts {
		err := apikey.ErrUnknown
		w.request(func() {
			for time.Now().Before(until) && n.lives.Err() == nil && errors.Is(err, apikey.ErrUnknown) {
				_, err = n.keys.Authenticate(time.Now(), madeUpTexts[i], new(apikey.LastKey), func() bool { return true })
			}
		}, func() {
			w.counts["floods"]++
			if err == nil {
				w.breaks(whoGetsPages, "%s takes a key that was made up", n)
			}
		})
	}
}

// reset notes that a node knows nothing of the log any more.
func (k *nodeKeys) reset() {
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	k.resets, k.joins = append(k.resets, k.run.Now()), true
}

// read notes what a node reads in the log.
func (k *nodeKeys) read(b changefeed.Beat) {
	now := k.run.Now()
	k.run.mu.Lock()
	defer k.run.mu.Unlock()
	if k.joins { // nothing tells it of changes from before it joined
		k.resets, k.joins = append(k.resets, now), false
	}
	for _, c := range slices.Concat(b.Settled, b.Unsettled) {
		for _, t := range c.Touched {
			if t.List == nil {
				k.touched = append(k.touched, touch{now, t.Tenant})
			}
		}
	}
	if !b.Moment.IsZero() {
		clock := k.node.machine.Clock
		k.beats = append(k.beats, proven{now, now.Add(clock.Of(b.Moment) - clock.Now()), b.StartedAt})
	}
}

// lookup implements apikey.Lookup.
func (k *nodeKeys) lookup(ctx context.Context, hashes []apikey.Hash, run string) (map[apikey.Hash]apikey.Key, error) {
	w, l := k.run, &lookup{run: run, began: k.run.Now()}
	for n, hash := range keyHashes {
		if slices.Contains(hashes, hash) {
			l.keys = append(l.keys, n)
		}
	}
	w.mu.Lock()
	k.judgeCost(hashes, l)
	k.lookups = append(k.lookups, l)
	w.mu.Unlock()
	name := fmt.Sprintf("%s, keys %v of run %q", k.node, l.keys, run)
	var err error
	if len(l.keys) > 0 {
		err = w.await(ctx, name, func(m *world.Message) { k.execute(m, l, name) })
	} else { // of made-up keys alone: what bounds their number is not the network
		err = w.Send(ctx, &world.Call{Name: name, Decide: func(m *world.Message) {
			m.Back = 2 * time.Millisecond
			m.Execute = func() time.Duration {
				k.execute(m, l, name)
				return 0
			}
		}})
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", postgres.ErrUnavailable, err)
	} else {
		err = l.err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	l.ended, l.err = w.Now(), err
	switch {
	case errors.Is(err, postgres.ErrWrongServer):
		if k.wrong.IsZero() {
			k.wrong = l.ended
		}
	case err == nil:
		k.judgeFlood(hashes, l)
		k.wrong = time.Time{}
		for _, n := range l.keys {
			if _, known := l.found[keyHashes[n]]; !known {
				k.good[n] = good{}
			}
		}
	}
	return l.found, err
}

// execute runs a look-up.
func (k *nodeKeys) execute(m *world.Message, l *lookup, name string) {
	w := k.run
	by, has := w.Server(), w.Visible()
	primary := by.StartedAt
	if w.Now().Before(k.inVain) {
		switch {
		case k.how == refused:
			l.err = postgres.ErrUnavailable
			return
		case k.how == hung:
			m.Fate = world.IsLost
			return
		case k.how == byOldPrimary && w.Old != nil:
			by, has, l.old = w.Old.Server, &w.Old.Accounts, true
		default:
			by.Timeline, by.StartedAt = 0, "of a standby"
		}
	}
	why := k.node.followed.Refuse(by, l.run)
	if why != nil {
		l.err = fmt.Errorf("%w: %w", postgres.ErrWrongServer, why)
		w.Tracef("%s refuses an answer: %v", k.node, why)
		if by.StartedAt == primary && !k.follows(l.began, l.began) {
			w.breaks(keyWorks, "the primary's answer to %s is refused: %v", name, why)
		}
		return
	}
	l.found = map[apikey.Hash]apikey.Key{}
	for _, n := range l.keys {
		key, ok := keyIn(has, n, w.Now(), by.StartedAt)
		if ok {
			l.found[keyHashes[n]] = key
		}
	}
	w.Tracef("%s finds %d", name, len(l.found))
}

// forms implements apikey.Forms. It answers at once: requests that wait for it hold a lock, which a bubble does not know.
func (k *nodeKeys) forms(_ context.Context, run string) (forms []apikey.Form, startedAt string, err error) {
	w := k.run
	why := k.node.followed.Refuse(w.Server(), run)
	k.judgeForms()
	if w.Now().Before(k.inVain) || why != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		k.noForms = w.Now()
		return nil, "", postgres.ErrUnavailable
	}
	for i, known := range w.Visible().Imported {
		if known {
			forms = append(forms, keyForms[i])
		}
	}
	k.formsAt, k.formsOf = w.Now(), w.Run
	return forms, w.Run, nil
}

// keyIn is a key as a server has it at a moment.
func keyIn(has *world.Accounts, n int, at time.Time, run string) (key apikey.Key, ok bool) {
	row := has.Keys[n]
	if row == nil {
		return key, false
	}
	workspace := has.Workspaces[row.Workspace]
	ended := func(r *world.Record) bool { return !r.EndsAt.IsZero() && !at.Before(r.EndsAt) }
	return apikey.Key{ID: uuid.MustParse(row.ID), Workspace: uuid.MustParse(workspace.ID), Tenant: workspace.ID, Scopes: uint64(row.Version),
		Revoked: ended(row), Suspended: ended(workspace), Scheduled: at.Before(row.EndsAt) || at.Before(workspace.EndsAt),
		Limit:          apikey.Limit{Set: true, Rate: 1, Burst: 1, Version: int64(row.Version)},
		WorkspaceLimit: apikey.Limit{Set: true, Rate: 1, Burst: 1, Version: int64(workspace.Version)},
		Label:          apikey.Label{Name: fmt.Sprint(row.Version)}, StartedAt: unique.Make(run)}, true
}

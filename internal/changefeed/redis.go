package changefeed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/fleet"
	"listedge/internal/list"
)

// Redis is the log of a fleet. All its keys share a hash tag, so that they are on one
// node of a Cluster. None of them may be evicted.
//
//	<prefix>{changes}:<identity>:epoch     names the present epoch
//	<prefix>{changes}:log:<epoch>          entries
//	<prefix>{changes}:checkpoint:<epoch>   when tables last changed
//	<prefix>{changes}:hurry                somebody waits for a proof
//	<prefix>{changes}:fleet                which database the fleet follows (fleet.Claim)
//
// Nothing is read or written until the identity is known: Epoch, which comes first, fails.
type Redis struct {
	client   redis.UniversalClient
	followed *fleet.Followed
	codec    codec
	batch    int
	refusals Refusals

	writing sync.Mutex  // guards writer
	writer  *writer     // nil = not connected
	hurried atomic.Bool // the last Append found that somebody had asked
}

const (
	// entryField is the only field of an entry, which the codec writes.
	entryField = "e"

	// logLife is the expiry of a log after its last entry, and of a checkpoint: old epochs
	// remove themselves.
	logLife = time.Hour
	// hurryLife is the expiry of what Hurry asks: those who wait do not wait for longer.
	hurryLife = time.Second
)

// RedisOptions are what a log on Redis needs.
type RedisOptions struct {
	Client   redis.UniversalClient // nothing else should use it: reading blocks
	Followed *fleet.Followed
	Lists    *list.Set
	Batch    int // what one Read returns at most, in entries; 0 = 1,000
}

// NewRedis makes a log of changes to the lists.
func NewRedis(o RedisOptions) *Redis {
	return &Redis{client: o.Client, followed: o.Followed, codec: newCodec(o.Lists), batch: cmp.Or(o.Batch, readBatch)}
}

// logKey is the key of an epoch's log.
func (r *Redis) logKey(epoch string) string { return r.followed.LogPrefix() + "log:" + epoch }

// Failure is why the log cannot be used, or not wholly; nil if it can.
func (r *Redis) Failure() error { return r.refusals.Latest() }

// note marks an error as the log's, and remembers a refusal.
func (r *Redis) note(err error) error {
	if err == nil || errors.Is(err, ErrFenced) || errors.Is(err, ErrSuperseded) {
		return err
	}
	return &Error{r.refusals.Note(err)}
}

// Refusals remembers the last operation that Redis refused, for example for lack of a right or
// of memory. The zero value is ready to use.
type Refusals struct{ last atomic.Pointer[refusal] }

type refusal struct {
	err error
	at  time.Time
}

// refusalLife is how long a refusal is remembered. What is still refused is tried again sooner.
const refusalLife = 5 * time.Second

// Note returns the result of an operation, and remembers it if it is a refusal. Other errors,
// such as a timeout, are no answers of Redis.
func (r *Refusals) Note(err error) error {
	if errors.As(err, new(redis.Error)) {
		r.last.Store(&refusal{err, time.Now()})
	}
	return err
}

// Latest returns the latest refusal; nil = there is none.
func (r *Refusals) Latest() error {
	if last := r.last.Load(); last != nil && time.Since(last.at) < refusalLife {
		return last.err
	}
	return nil
}

// Epoch implements Log.
func (r *Redis) Epoch(ctx context.Context) (epoch string, err error) {
	defer func() { err = r.note(err) }()
	if r.followed.Digest() == "" {
		return "", errors.New("it is not known yet which database is followed")
	}
	epoch, err = r.client.Get(ctx, r.followed.EpochKey()).Result()
	if errors.Is(err, redis.Nil) || isDamaged(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the epoch: %w", err)
	}
	return epoch, nil
}

// isDamaged reports whether Redis has a value of another type than ours at a key. It is
// taken for an absent one, and written anew.
func isDamaged(err error) bool { return redis.HasErrorPrefix(err, "WRONGTYPE") }

// setEpoch replaces the epoch if it is the expected one, in one step, because a node may stop
// between two. It returns whether the epoch is set.
var setEpoch = redis.NewScript(`
local present = redis.pcall('GET', KEYS[1])
if type(present) ~= 'string' then
	present = '' -- absent, or of another type
end
if present ~= ARGV[1] and present ~= ARGV[2] then
	return 0
end
redis.call('SET', KEYS[1], ARGV[2])
return 1`)

// SetEpoch implements Log.
func (r *Redis) SetEpoch(ctx context.Context, from, to string) (err error) {
	defer func() { err = r.note(err) }()
	set, err := setEpoch.Run(ctx, r.client, []string{r.followed.EpochKey()}, from, to).Bool()
	if err != nil {
		return fmt.Errorf("write the epoch: %w", err)
	}
	if !set {
		return ErrSuperseded
	}
	return nil
}

// One connection writes entries, and each reader has one connection. So it is known which
// server answers: a connection never changes its server.

// appendEntries adds entries to the log in one step. It adds nothing if the log has
// another epoch, because then another follower has replaced this one. (The start of a
// term is written before its epoch is set.) XADD refuses an ID that is not above the
// last; later entries may still be accepted. A log of another type than a stream is
// written anew: readers notice that entries are missing.
var appendEntries = redis.NewScript(`
local present = redis.pcall('GET', KEYS[2])
if ARGV[2] == '' and present and present ~= ARGV[1] then
	return {-1}
end
local fenced = false
for i = 4, #ARGV, 2 do
	local added = redis.pcall('XADD', KEYS[1], ARGV[i], '` + entryField + `', ARGV[i + 1])
	if type(added) == 'table' and string.find(added.err, 'WRONGTYPE', 1, true) then
		redis.call('DEL', KEYS[1])
		added = redis.pcall('XADD', KEYS[1], ARGV[i], '` + entryField + `', ARGV[i + 1])
	end
	if type(added) == 'table' and added.err then
		if not string.find(added.err, 'equal or smaller') and not string.find(added.err, 'must be greater') then
			return added
		end
		fenced = true
	end
end
if ARGV[3] ~= '' then
	redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return {fenced and 0 or 1, redis.call('DEL', KEYS[3])}`)

// writer is the connection for appending entries.
type writer struct {
	conn   *redis.Conn
	server string   // the run_id of the server on the connection
	first  Position // the server has acknowledged this entry; zero = none yet
}

// Append implements Log. Each heartbeat names the server that appends it. If another server
// appended the entry at its After, After is set to zero. So a reader knows whether its server
// was the first to have that entry (Subscription).
func (r *Redis) Append(ctx context.Context, epoch string, entries ...Entry) (err error) {
	defer func() { err = r.note(err) }()
	r.writing.Lock()
	defer r.writing.Unlock()
	w := r.writer
	if w == nil {
		w = &writer{}
		w.conn, w.server, err = r.connect(ctx)
		if err != nil {
			return err
		}
		r.writer = w
	}
	hurried, err := w.append(ctx, &r.codec, []string{r.logKey(epoch), r.followed.EpochKey(), r.hurryKey()}, epoch, entries)
	if hurried {
		r.hurried.Store(true)
	}
	switch {
	case err == nil && w.first == (Position{}):
		w.first = entries[len(entries)-1].Position
	case err != nil && !errors.Is(err, ErrFenced) && !errors.Is(err, ErrSuperseded):
		_ = w.conn.Close()
		r.writer = nil
		r.forgetServers(ctx)
	}
	return err
}

func (w *writer) append(ctx context.Context, codec *codec, keys []string, epoch string, entries []Entry) (hurried bool, err error) {
	termStarts, life := "", ""
	args := make([]any, 3, 3+2*len(entries))
	for _, e := range entries {
		if e.TermStart != nil {
			termStarts = "1"
		}
		if e.Position.N%100 == 1 { // the first entry of a term, and then each hundredth, extends the expiry
			life = strconv.FormatInt(logLife.Milliseconds(), 10)
		}
		if e.Heartbeat != nil {
			h := *e.Heartbeat
			h.LogServer = w.server
			if w.first == (Position{}) || h.After.Compare(w.first) < 0 {
				h.After = Position{}
			}
			e.Heartbeat = &h
		}
		body, err := codec.encode(&e)
		if err != nil {
			return false, err
		}
		args = append(args, e.Position.String(), body)
	}
	args[0], args[1], args[2] = epoch, termStarts, life
	answer, err := appendEntries.Run(ctx, w.conn, keys, args...).Int64Slice()
	switch {
	case err != nil:
		return false, fmt.Errorf("append entries from %s: %w", entries[0].Position, err)
	case answer[0] < 0:
		return false, ErrSuperseded
	case answer[0] == 0:
		return false, ErrFenced
	}
	return answer[1] > 0, nil
}

// connect opens a connection to the server that has the log, and reads its run_id, which
// identifies one run of one Redis process.
func (r *Redis) connect(ctx context.Context) (conn *redis.Conn, server string, err error) {
	var client *redis.Client
	switch c := r.client.(type) {
	case *redis.Client:
		client = c
	case *redis.ClusterClient:
		client, err = c.MasterForKey(ctx, r.logKey(""))
		if err != nil {
			return nil, "", fmt.Errorf("find the log: %w", err)
		}
	default:
		panic(fmt.Sprintf("BUG: a %T", r.client))
	}
	conn = client.EphemeralConn()
	info, err := conn.InfoMap(ctx, "server").Result()
	if err != nil {
		_ = conn.Close()
		r.forgetServers(ctx)
		return nil, "", fmt.Errorf("identify the server of the log: %w", err)
	}
	return conn, info["Server"]["run_id"], nil
}

// forgetServers makes the client look up the servers of a Cluster again.
func (r *Redis) forgetServers(ctx context.Context) {
	if c, ok := r.client.(*redis.ClusterClient); ok {
		c.ReloadState(ctx)
	}
}

// readBatch is the batch of a node.
const readBatch = 1000

// Reader implements Log.
func (r *Redis) Reader(ctx context.Context) (reader Reader, server string, err error) {
	defer func() { err = r.note(err) }()
	conn, server, err := r.connect(ctx)
	if err != nil {
		return nil, "", err
	}
	return &redisReader{conn, r}, server, nil
}

// redisReader embeds no *redis.Conn: the compiler would make a wrapper of each of its 600 methods.
type redisReader struct {
	conn *redis.Conn
	log  *Redis
}

// Close implements Reader.
func (r *redisReader) Close() error { return r.conn.Close() }

// Read implements Reader.
func (r *redisReader) Read(ctx context.Context, epoch string, after Position, wait time.Duration) (entries []Entry, cut bool, err error) {
	defer func() { err = r.log.note(err) }()
	streams, err := r.conn.XRead(ctx, &redis.XReadArgs{
		Streams: []string{r.log.logKey(epoch), after.String()}, Count: int64(r.log.batch), Block: max(wait, time.Millisecond),
	}).Result()
	if errors.Is(err, redis.Nil) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read the log: %w", err)
	}
	for _, s := range streams {
		for _, m := range s.Messages {
			at, err := ParsePosition(m.ID)
			if err != nil {
				return nil, false, err
			}
			body, _ := m.Values[entryField].(string)
			entry := r.log.codec.decode(body)
			entry.Position = at
			entries = append(entries, entry)
		}
	}
	return entries, len(entries) >= r.log.batch, nil
}

// Last implements Log. A trimmed stream keeps its last ID.
func (r *Redis) Last(ctx context.Context, epoch string) (last Position, err error) {
	defer func() { err = r.note(err) }()
	info, err := r.client.XInfoStream(ctx, r.logKey(epoch)).Result()
	if err != nil {
		if strings.Contains(err.Error(), "no such key") || isDamaged(err) {
			return Position{}, nil
		}
		return Position{}, fmt.Errorf("read the log's end: %w", err)
	}
	return ParsePosition(info.LastGeneratedID)
}

// Trim implements Log.
func (r *Redis) Trim(ctx context.Context, epoch string, before Position) (err error) {
	defer func() { err = r.note(err) }()
	if err := r.client.XTrimMinID(ctx, r.logKey(epoch), before.String()).Err(); err != nil {
		return fmt.Errorf("trim the log: %w", err)
	}
	return nil
}

func (r *Redis) checkpointKey(epoch string) string {
	return r.followed.LogPrefix() + "checkpoint:" + epoch
}

// Checkpoint implements Log.
func (r *Redis) Checkpoint(ctx context.Context, epoch string) (c *Checkpoint, err error) {
	defer func() { err = r.note(err) }()
	body, err := r.client.Get(ctx, r.checkpointKey(epoch)).Result()
	if errors.Is(err, redis.Nil) || isDamaged(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the checkpoint: %w", err)
	}
	return r.codec.decodeCheckpoint(epoch, body), nil
}

// SetCheckpoint implements Log.
func (r *Redis) SetCheckpoint(ctx context.Context, c *Checkpoint) (err error) {
	defer func() { err = r.note(err) }()
	if err := r.client.Set(ctx, r.checkpointKey(c.Epoch), encodeCheckpoint(c), logLife).Err(); err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	return nil
}

func (r *Redis) hurryKey() string { return r.followed.LogPrefix() + "hurry" }

// Hurry implements Log.
func (r *Redis) Hurry(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	_ = r.note(r.client.Set(ctx, r.hurryKey(), 1, hurryLife).Err()) // a proof comes all the same, later
}

// Hurried implements Log.
func (r *Redis) Hurried() bool { return r.hurried.Swap(false) }

// RedisCommands are the commands that a node uses for the log of changes, also within
// scripts, on keys that begin with own and have the hash tag of the log: to check the rights of
// a user.
func RedisCommands(own string) [][]any {
	log, hash, epoch, hurry := own+":{changes}:log", own+":{changes}:hash", own+":{changes}:epoch", own+":{changes}:hurry"
	return [][]any{
		{"xadd", log, "1-1", entryField, "x"},
		{"xread", "count", 1, "streams", log, "0"},
		{"xinfo", "stream", log},
		{"xtrim", log, "minid", "1-1"},
		{"set", epoch, "x", "px", 1000},
		{"get", epoch},
		{"eval", "return redis.call('GET', KEYS[1])", 1, epoch},
		{"evalsha", setEpoch.Hash(), 1, epoch, "x", "x"},
		{"evalsha", appendEntries.Hash(), 3, log, epoch, hurry, own, "", ""},
		{"info", "server"},
		{"time"},
		{"hset", hash, "x", "y"},
		{"pexpire", hash, 1000},
		{"hgetall", hash},
		{"hdel", hash, "x"},
		{"del", log, hash, epoch},
	}
}

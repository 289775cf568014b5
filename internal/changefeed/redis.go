package changefeed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis is the log of a fleet. All its keys share a hash tag, so that in a
// Cluster they are on one node; none of them may be evicted.
//
//	{listedge}:<identity>:epoch   names the present epoch
//	{listedge}:log:<epoch>        entries
//	{listedge}:followers          which identities are followed at the moment
//
// Until the identity is known nothing is read and nothing is written. Nodes of
// before identities were part of names read the epoch without one: for them the
// follower names it there too, unless the Redis is also used for another identity.
type Redis struct {
	client   redis.UniversalClient
	followed *Followed
	failures Failures
	shared   atomic.Bool // another identity is followed too, when SetEpoch last looked

	writing sync.Mutex // guards writer
	writer  *writer    // nil = not connected
}

const (
	keyPrefix    = "{listedge}:"
	oldEpochKey  = keyPrefix + "epoch"
	followersKey = keyPrefix + "followers"
	logKey       = keyPrefix + "log:"
	entryField   = "e"

	// followerLife is how long a follower counts as alive after it last named
	// its epoch, which it does every second.
	followerLife = 10 * time.Second

	// logLife outlasts the log's last entry: what an epoch leaves behind goes
	// away by itself.
	logLife = time.Hour
)

// NewRedis uses the client, which should be one of its own: reading blocks.
func NewRedis(client redis.UniversalClient, followed *Followed) *Redis {
	return &Redis{client: client, followed: followed}
}

var errUnknown = errors.New("it is not known yet which database is followed")

// key is one of those that have the identity in their names.
func (r *Redis) key(name string) (string, error) {
	digest := r.followed.Digest()
	if digest == "" {
		return "", errUnknown
	}
	return keyPrefix + digest + ":" + name, nil
}

// Failure is why the log cannot be used, or not wholly; nil if it can.
func (r *Redis) Failure() error { return r.failures.Latest() }

// note remembers what an operation came to, and marks it as the log's.
func (r *Redis) note(operation string, err error) error {
	if err == nil || errors.Is(err, ErrFenced) || errors.Is(err, ErrSuperseded) || errors.As(err, new(*TimelineError)) {
		_ = r.failures.Note(operation, nil)
		return err
	}
	return &Error{r.failures.Note(operation, err)}
}

// Epoch implements Log.
func (r *Redis) Epoch(ctx context.Context) (epoch string, err error) {
	defer func() { err = r.note("epoch", err) }()
	key, err := r.key("epoch")
	if err != nil {
		return "", err
	}
	epoch, err = r.client.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the epoch: %w", err)
	}
	return epoch, nil
}

// setEpoch compares and sets in one step: a node may be stopped anywhere. It
// enters who is accepted among the followers, by Redis' own clock, and returns
// how many others there are. -1: superseded; -2: of an older timeline than the
// epoch that is returned behind it.
var setEpoch = redis.NewScript(`
local function parse(epoch)
	local identity, timeline = string.match(epoch, '^([^.]*)%.(%d+)%.[^.]*%.[^.]*%.[^.]*$')
	return identity, tonumber(timeline or 0)
end
local present = redis.call('GET', KEYS[1]) or ''
local identity, timeline = parse(present)
local of, to = parse(ARGV[2])
local same = of and of == identity
if same and to < timeline then
	return {-2, present}
end
if present ~= ARGV[1] and present ~= ARGV[2] and not (same and to > timeline) then
	return {-1}
end
redis.call('SET', KEYS[1], ARGV[2])
local now, others = redis.call('TIME'), 0
now = now[1] * 1000 + math.floor(now[2] / 1000)
local known = redis.call('HGETALL', KEYS[2])
for i = 1, #known, 2 do
	if known[i] ~= ARGV[3] then
		if now - tonumber(string.match(known[i + 1], '%d+$') or 0) > tonumber(ARGV[5]) then
			redis.call('HDEL', KEYS[2], known[i])
		else
			others = others + 1
		end
	end
end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4] .. ' ' .. now)
redis.call('PEXPIRE', KEYS[2], ARGV[5])
if others == 0 then
	redis.call('SET', KEYS[3], ARGV[2])
end
return {others}`)

// SetEpoch implements Log.
func (r *Redis) SetEpoch(ctx context.Context, from, to string) (err error) {
	defer func() { err = r.note("set epoch", err) }()
	identity, known := r.followed.Identity()
	if !known {
		return errUnknown
	}
	digest := identity.Digest()
	answer, err := setEpoch.Run(ctx, r.client, []string{EpochKey(digest), followersKey, oldEpochKey}, from, to, digest, identity.String(), followerLife.Milliseconds()).Slice()
	if err != nil {
		return fmt.Errorf("write the epoch: %w", err)
	}
	switch others := answer[0].(int64); others {
	case -2:
		present, _ := answer[1].(string)
		return CheckTimeline(present, to)
	case -1:
		return ErrSuperseded
	default:
		r.shared.Store(others > 0)
	}
	return nil
}

// Followers are the identities that are followed at the moment, by their
// digests. Whose follower is gone is known by those that are not.
func (r *Redis) Followers(ctx context.Context) (followers map[string]string, err error) {
	defer func() { err = r.note("followers", err) }()
	fields, err := r.client.HGetAll(ctx, followersKey).Result()
	if err != nil {
		return nil, fmt.Errorf("read the followers: %w", err)
	}
	followers, _ = recent(fields, followerLife)
	return followers, nil
}

// recent reads fields of "<text> <milliseconds>". Those are gone that were
// written more than life before the latest.
func recent(fields map[string]string, life time.Duration) (texts map[string]string, gone []string) {
	texts = make(map[string]string, len(fields))
	came, latest := make(map[string]int64, len(fields)), int64(0)
	for name, field := range fields {
		blank := strings.LastIndexByte(field, ' ')
		if ms, err := strconv.ParseInt(field[blank+1:], 10, 64); blank >= 0 && err == nil {
			texts[name], came[name], latest = field[:blank], ms, max(latest, ms)
		}
	}
	for name, ms := range came {
		if latest-ms > life.Milliseconds() {
			gone = append(gone, name)
			delete(texts, name)
		}
	}
	return texts, gone
}

// appendEntries adds entries to the log in one step, unless another epoch than its
// own is named: whoever follows that one has replaced this follower. (The start of
// a term is written before its epoch is named.) XADD refuses an ID that is not
// above the last; the entries behind it may be.
var appendEntries = redis.NewScript(`
local present = redis.call('GET', KEYS[2])
if ARGV[2] == '' and present and present ~= ARGV[1] then
	return {-1}
end
local fenced = false
for i = 4, #ARGV, 2 do
	local added = redis.pcall('XADD', KEYS[1], ARGV[i], '` + entryField + `', ARGV[i + 1])
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
return {fenced and 0 or 1}`)

// writer is a connection that entries are appended by.
type writer struct {
	conn   *redis.Conn
	server string   // that it leads to
	first  Position // that the server acknowledged
}

// Append implements Log. It names in each heartbeat the server that it is
// appended by, and the entry at After must have been, too: so a reader knows
// whether its server is the one that had the entry first (Subscription).
func (r *Redis) Append(ctx context.Context, epoch string, entries ...Entry) (err error) {
	defer func() { err = r.note("append", err) }()
	r.writing.Lock()
	defer r.writing.Unlock()
	w, err := r.openWriter(ctx)
	if err != nil {
		return err
	}
	err = w.append(ctx, r.followed.Digest(), epoch, entries)
	switch {
	case err == nil && w.first == (Position{}):
		w.first = entries[len(entries)-1].Position
	case err != nil && !errors.Is(err, ErrFenced) && !errors.Is(err, ErrSuperseded):
		r.closeWriter(ctx)
	}
	return err
}

func (r *Redis) openWriter(ctx context.Context) (*writer, error) {
	if r.writer == nil {
		conn, server, err := r.connect(ctx)
		if err != nil {
			return nil, err
		}
		r.writer = &writer{conn: conn, server: server}
	}
	return r.writer, nil
}

func (r *Redis) closeWriter(ctx context.Context) {
	_ = r.writer.conn.Close()
	r.writer = nil
	r.forgetServers(ctx)
}

func (w *writer) append(ctx context.Context, digest, epoch string, entries []Entry) error {
	termStarts, life := "", ""
	args := make([]any, 3, 3+2*len(entries))
	for _, e := range entries {
		if e.TermStart != nil {
			termStarts = "1"
		}
		if keepsAlive(e) {
			life = strconv.FormatInt(logLife.Milliseconds(), 10)
		}
		if e.Heartbeat != nil {
			h := *e.Heartbeat
			h.LogServer = w.server
			if w.first == (Position{}) || h.After.Compare(w.first) < 0 {
				h.After = neverAfter
			}
			e.Heartbeat = &h
		}
		body, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("encode entry %s: %w", e.Position, err)
		}
		args = append(args, e.Position.String(), body)
	}
	args[0], args[1], args[2] = epoch, termStarts, life
	answer, err := appendEntries.Run(ctx, w.conn, []string{logKey + epoch, EpochKey(digest)}, args...).Int64Slice()
	switch {
	case err != nil:
		return fmt.Errorf("append entries from %s: %w", entries[0].Position, err)
	case answer[0] < 0:
		return ErrSuperseded
	case answer[0] == 0:
		return ErrFenced
	}
	return nil
}

// connect opens a connection of its own to the server that has the log, and asks
// which one it is: a run of one process of Redis.
func (r *Redis) connect(ctx context.Context) (conn *redis.Conn, server string, err error) {
	var client *redis.Client
	switch c := r.client.(type) {
	case *redis.Client:
		client = c
	case *redis.ClusterClient:
		if client, err = c.MasterForKey(ctx, logKey); err != nil {
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
		return nil, "", fmt.Errorf("ask which server has the log: %w", err)
	}
	return conn, info["Server"]["run_id"], nil
}

// forgetServers has a Cluster's servers looked up again.
func (r *Redis) forgetServers(ctx context.Context) {
	if c, ok := r.client.(*redis.ClusterClient); ok {
		c.ReloadState(ctx)
	}
}

// keepsAlive says whether the log's life is extended with the entry: a term's
// first, and now and then another, which is soon enough.
func keepsAlive(e Entry) bool { return e.Position.N%100 == 1 }

// Last implements Log. A trimmed stream still knows its last ID.
func (r *Redis) Last(ctx context.Context, epoch string) (last Position, err error) {
	defer func() { err = r.note("last", err) }()
	info, err := r.client.XInfoStream(ctx, logKey+epoch).Result()
	if err != nil {
		if strings.Contains(err.Error(), "no such key") {
			return Position{}, nil
		}
		return Position{}, fmt.Errorf("read the log's end: %w", err)
	}
	return ParsePosition(info.LastGeneratedID)
}

// readBatch bounds what one Read returns, in entries.
const readBatch = 1000

// Reader implements Log.
func (r *Redis) Reader(ctx context.Context) (reader Reader, err error) {
	defer func() { err = r.note("open a reader", err) }()
	conn, server, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	return &redisReader{log: r, conn: conn, server: server}, nil
}

// redisReader has one connection, which it never replaces.
type redisReader struct {
	log    *Redis
	conn   *redis.Conn
	server string
	err    error // of the first read that failed
}

// Server implements Reader.
func (r *redisReader) Server() string { return r.server }

// Close implements Reader.
func (r *redisReader) Close() error { return r.conn.Close() }

// Read implements Reader.
func (r *redisReader) Read(ctx context.Context, epoch string, after Position, wait time.Duration) (entries []Entry, cut bool, err error) {
	if r.err != nil {
		return nil, false, r.err
	}
	defer func() {
		r.err = r.log.note("read", err)
		err = r.err
	}()
	streams, err := r.conn.XRead(ctx, &redis.XReadArgs{
		Streams: []string{logKey + epoch, after.String()}, Count: readBatch, Block: max(wait, time.Millisecond),
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
			entries = append(entries, decode(at, body))
		}
	}
	return entries, len(entries) >= readBatch, nil
}

// decode reads the body of an entry; what it cannot read is Undecodable.
func decode(at Position, body string) (e Entry) {
	if json.Unmarshal([]byte(body), &e) != nil {
		e = Entry{}
	}
	e.Position = at
	return e
}

// Trim implements Log.
func (r *Redis) Trim(ctx context.Context, epoch string, before Position) (err error) {
	defer func() { err = r.note("trim", err) }()
	if err := r.client.XTrimMinID(ctx, logKey+epoch, before.String()).Err(); err != nil {
		return fmt.Errorf("trim the log: %w", err)
	}
	return nil
}

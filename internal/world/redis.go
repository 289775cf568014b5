package world

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis is one server, as data: it executes the commands that nodes send, as a real one does (TestRedis holds the two equal).
// Safe for use by several goroutines.
//
//	redis := world.NewRedis("a", time.Now)
//	client := redis.Client() // a real client of go-redis, without a socket: each command is executed at once
//
// In a World use World.Redis instead: the world decides when commands arrive, and on which server.
//
// It runs the product's own scripts (lua.go).
type Redis struct {
	Name    string // its run_id
	Replica bool   // it accepts no writes
	Traffic Traffic

	now     func() time.Time
	mu      sync.Mutex // guards all below, and Traffic
	items   map[string]item
	scripts map[string]string // by digests
	lua     *interpreter      // nil = it has run none
	journal [][]effect        // the latest writes, each with all that it did
	written uint64            // how many writes there were
	grown   chan struct{}     // closed and replaced by a write
}

// Traffic counts what clients send, and what they get.
type Traffic struct{ Commands, Sent, Received uint64 }

// item is the value of a key. It is immutable, so servers may share it.
type item struct {
	value   any   // a string, a stream, a hash, a sorted set or a set
	expires int64 // in milliseconds since 1970; 0 = never
}

type (
	hash   map[string]string
	sorted map[string]float64
	set    map[string]bool
)

// effect is what a write does to a key. An item without a value is absent.
type effect struct {
	key     string
	was, is item
}

// journaled is how many writes a server remembers.
const journaled = 256

// NewRedis makes an empty server.
func NewRedis(name string, now func() time.Time) *Redis {
	return &Redis{Name: name, now: now, items: map[string]item{}, scripts: map[string]string{}, grown: make(chan struct{})}
}

// Fork returns another server that has all but the latest writes. It has no scripts.
func (s *Redis) Fork(name string, without int) *Redis {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := NewRedis(name, s.now)
	f.items = maps.Clone(s.items)
	without = min(without, len(s.journal))
	for _, effects := range slices.Backward(s.journal[len(s.journal)-without:]) {
		for _, e := range slices.Backward(effects) {
			f.set(e.key, e.was)
		}
	}
	f.written = s.written - uint64(without)
	f.separate()
	return f
}

// separate lets the server append to its streams while another one appends to them, too.
func (s *Redis) separate() {
	for key, i := range s.items {
		if of, ok := i.value.(stream); ok {
			of.entries = slices.Clip(of.entries)
			s.items[key] = item{of, i.expires}
		}
	}
}

// mirror returns a server that follows this one.
func (s *Redis) mirror(name string) *Redis {
	m := s.Fork(name, 0)
	m.Replica = true
	return m
}

// Promote makes a mirror accept writes.
func (s *Redis) Promote() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Replica = false
	s.separate()
}

// Follow lets a mirror apply what it lacks of another server, but for its latest writes.
func (s *Redis) Follow(of *Redis, without int) {
	of.mu.Lock()
	journal, written := of.journal, of.written
	of.mu.Unlock()
	to := written - min(uint64(without), written)
	if to <= s.written {
		return
	}
	first := written - uint64(len(journal)) // of the journal
	if s.written < first {
		is := of.Fork(s.Name, without)
		s.mu.Lock()
		s.items, s.written = is.items, is.written
		s.mu.Unlock()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, effects := range journal[s.written-first : to-first] {
		s.note(effects)
	}
}

// Lose takes all keys away, or all but those of a dump.
func (s *Redis) Lose(dump *Redis) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items = map[string]item{}
	if dump != nil {
		s.items = dump.Fork("", 0).items
	}
	s.journal, s.written = nil, s.written+journaled+1 // a mirror has to begin anew
}

// Trim drops the oldest entries of a stream, so many of a number that choose gets.
func (s *Redis) Trim(key string, choose func(of int) int) (dropped, kept int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, _ := s.item(key).value.(stream)
	if len(of.entries) == 0 {
		return 0, 0
	}
	n := choose(len(of.entries))
	of.entries = of.entries[n:]
	s.note([]effect{{key, s.items[key], item{of, s.items[key].expires}}})
	return n, len(of.entries)
}

// forget drops all keys that begin so.
func (s *Redis) forget(prefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var effects []effect
	for key, i := range s.items {
		if strings.HasPrefix(key, prefix) {
			effects = append(effects, effect{key, i, item{}})
		}
	}
	s.note(effects)
}

// note does what a write does.
func (s *Redis) note(effects []effect) {
	for _, e := range effects {
		s.set(e.key, e.is)
	}
	s.journal = append(s.journal, effects)
	if len(s.journal) > 2*journaled {
		s.journal = slices.Clone(s.journal[journaled:])
	}
	s.written++
	close(s.grown)
	s.grown = make(chan struct{})
}

func (s *Redis) set(key string, to item) {
	if to.value == nil {
		delete(s.items, key)
		return
	}
	s.items[key] = to
}

// item returns the item of a key, if it has not expired.
func (s *Redis) item(key string) item {
	i := s.items[key]
	if i.expires != 0 && s.now().UnixMilli() > i.expires {
		return item{}
	}
	return i
}

// Execute executes the commands of a call. blocks says for how long it waits, because it reads a stream that has nothing new:
// then it is executed again after a write, and answered with nothing at the end.
func (s *Redis) Execute(c *RedisCall) (blocks time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Replies == nil {
		s.Traffic.Commands += uint64(len(c.Commands))
		for _, args := range c.Commands {
			s.Traffic.Sent += sizeOf(args)
		}
	}
	c.Replies = c.Replies[:0]
	for _, args := range c.Commands {
		t := &Tx{Redis: s}
		is := t.Call(args...)
		if len(t.effects) > 0 {
			s.note(t.effects)
		}
		c.Replies = append(c.Replies, is)
		blocks = t.blocks
	}
	if blocks == 0 {
		for _, is := range c.Replies {
			s.Traffic.Received += sizeOf(is)
		}
	}
	return blocks
}

// Client returns a client whose commands are executed at once.
func (s *Redis) Client() *redis.Client { return NewRedisClient(s.carry) }

// carry executes a call, and waits as long as that blocks.
func (s *Redis) carry(ctx context.Context, c *RedisCall) error {
	began := s.now()
	for ctx.Err() == nil {
		s.mu.Lock()
		grown := s.grown
		s.mu.Unlock()
		blocks := s.Execute(c) - s.now().Sub(began)
		if blocks <= 0 {
			return nil
		}
		timer := time.NewTimer(blocks)
		select {
		case <-grown:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return ctx.Err()
}

// sizeOf is how many bytes a command or an answer takes on the wire.
func sizeOf(of any) (n uint64) {
	number := func(n int) uint64 { return uint64(len(strconv.Itoa(n))) }
	switch v := of.(type) {
	case nil:
		return 5
	case string:
		return 5 + number(len(v)) + uint64(len(v))
	case int64:
		return 3 + number(int(v))
	case status:
		return 3 + uint64(len(v))
	case RedisError:
		return 3 + uint64(len(v))
	case []string:
		n = 3 + number(len(v))
		for _, s := range v {
			n += sizeOf(s)
		}
	case []any:
		n = 3 + number(len(v))
		for _, a := range v {
			n += sizeOf(a)
		}
	}
	return n
}

// RedisError is an error that a server answers with.
type RedisError string

func (e RedisError) Error() string { return string(e) }

// RedisError implements redis.Error.
func (RedisError) RedisError() {}

// status is an answer such as OK.
type status string

const (
	done       = status("OK")
	wrongType  = RedisError("WRONGTYPE Operation against a key holding the wrong kind of value")
	readOnly   = RedisError("READONLY You can't write against a read only replica.")
	noScript   = RedisError("NOSCRIPT No matching script. Please use EVAL.")
	syntax     = RedisError("ERR syntax error")
	notInteger = RedisError("ERR value is not an integer or out of range")
	badID      = RedisError("ERR Invalid stream ID specified as stream command argument")
	notAboveID = RedisError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
	zeroID     = RedisError("ERR The ID specified in XADD must be greater than 0-0")
	noKey      = RedisError("ERR no such key")
)

// least is the least number of words that a command has, with its name. A command that writes has a negative one.
var least = map[string]int{"ping": 1, "time": 1, "info": 1, "keys": 2, "flushall": -1, "script": 2, "eval": 3, "evalsha": 3,
	"get": 2, "getrange": 4, "set": -3, "del": -2, "exists": 2, "type": 2, "pttl": 2, "ttl": 2, "pexpire": -3, "expire": -3,
	"xadd": -5, "xread": 4, "xrange": 4, "xlen": 2, "xinfo": 3, "xtrim": -4,
	"hset": -4, "hget": 3, "hmget": 3, "hgetall": 2, "hdel": -3, "sadd": -3,
	"zadd": -4, "zrem": -3, "zcard": 2, "zcount": 4, "zrangebyscore": 4, "zremrangebyscore": -4}

// Tx is a command or a script that is executed, all at once.
type Tx struct {
	*Redis
	effects []effect
	blocks  time.Duration // a read of a stream waits for so long, because it found nothing
}

// Call executes a command and returns its answer, as redis.pcall does: nil, a string, an int64, a []any, or an error.
func (t *Tx) Call(args ...string) any {
	name := strings.ToLower(args[0])
	words, known := least[name]
	switch {
	case !known:
		panic(fmt.Sprintf("BUG: the stand-in for Redis does not know %q", args))
	case words < 0 && t.Replica:
		return readOnly
	case len(args) < max(words, -words):
		return RedisError("ERR wrong number of arguments for '" + name + "' command")
	}
	is, err := t.run(name, args[1:])
	if err != nil {
		return err
	}
	return is
}

// Now is the server's time in microseconds since 1970.
func (t *Tx) Now() int64 { return t.now().UnixMicro() }

func (t *Tx) run(name string, args []string) (is any, err error) {
	switch name {
	case "ping":
		return status("PONG"), nil
	case "time":
		now := t.Now()
		return []any{strconv.FormatInt(now/1e6, 10), strconv.FormatInt(now%1e6, 10)}, nil
	case "info":
		return "# Server\r\nrun_id:" + t.Name + "\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n", nil
	case "keys":
		all := []any{}
		for _, key := range slices.Sorted(maps.Keys(t.items)) {
			if t.item(key).value != nil {
				all = append(all, key)
			}
		}
		return all, nil
	case "flushall":
		for key := range t.items {
			t.put(key, item{})
		}
		return done, nil
	case "script":
		return t.script(args)
	case "eval", "evalsha":
		return t.eval(name, args)
	case "del", "exists":
		return t.count(name, args), nil
	case "type":
		return t.typeOf(args[0]), nil
	case "pttl", "ttl":
		return t.left(name, args[0]), nil
	case "pexpire", "expire":
		return t.expire(name, args)
	case "get", "getrange", "set":
		return ofString(t, name, args)
	case "xadd", "xread", "xrange", "xlen", "xinfo", "xtrim":
		return ofStream(t, name, args)
	case "sadd":
		return sadd(t, args)
	case "zadd", "zrem", "zcard", "zcount", "zrangebyscore", "zremrangebyscore":
		return ofSorted(t, name, args)
	}
	return ofHash(t, name, args)
}

// put gives a key another item.
func (t *Tx) put(key string, to item) {
	t.effects = append(t.effects, effect{key, t.items[key], to})
	t.set(key, to)
}

// replace gives a key another value, which keeps its expiry. One that is empty leaves, but for a stream.
func (t *Tx) replace(key string, value any, size int) {
	if size == 0 {
		t.put(key, item{})
		return
	}
	t.put(key, item{value, t.item(key).expires})
}

// valueOf returns the value of a key; zero = it is absent.
func valueOf[T any](t *Tx, key string) (v T, err error) {
	i := t.item(key)
	if i.value == nil {
		return v, nil
	}
	v, ok := i.value.(T)
	if !ok {
		return v, wrongType
	}
	return v, nil
}

func (t *Tx) count(name string, keys []string) (n int64) {
	for _, key := range keys {
		if t.item(key).value == nil {
			continue
		}
		n++
		if name == "del" {
			t.put(key, item{})
		}
	}
	return n
}

func (t *Tx) typeOf(key string) status {
	switch t.item(key).value.(type) {
	case string:
		return "string"
	case stream:
		return "stream"
	case hash:
		return "hash"
	case sorted:
		return "zset"
	case set:
		return "set"
	}
	return "none"
}

// left is what is left of a key's life: -1 = for ever, -2 = there is none.
func (t *Tx) left(name, key string) int64 {
	i := t.item(key)
	switch {
	case i.value == nil:
		return -2
	case i.expires == 0:
		return -1
	case name == "ttl":
		return (i.expires - t.now().UnixMilli() + 500) / 1000
	}
	return i.expires - t.now().UnixMilli()
}

func (t *Tx) expire(name string, args []string) (is any, err error) {
	life, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return nil, notInteger
	}
	if name == "expire" {
		life *= 1000
	}
	i := t.item(args[0])
	if i.value == nil {
		return int64(0), nil
	}
	i.expires = t.now().UnixMilli() + life
	if life <= 0 {
		i = item{}
	}
	t.put(args[0], i)
	return int64(1), nil
}

func (t *Tx) script(args []string) (is any, err error) {
	switch strings.ToLower(args[0]) {
	case "flush":
		clear(t.scripts)
		return done, nil
	case "load":
		digest := digestOf(args[1])
		t.scripts[digest] = args[1]
		return digest, nil
	}
	return nil, errors.New("BUG: the stand-in does not know this SCRIPT command")
}

// eval runs a script.
func (t *Tx) eval(name string, args []string) (is any, err error) {
	digest := args[0]
	if name == "eval" {
		digest = digestOf(args[0])
		t.scripts[digest] = args[0]
	}
	text, known := t.scripts[digest]
	if !known {
		return nil, noScript
	}
	keys, err := strconv.Atoi(args[1])
	if err != nil || keys < 0 || keys > len(args)-2 {
		return nil, notInteger
	}
	if t.lua == nil {
		t.lua = newInterpreter()
	}
	is = t.lua.eval(t, text, args[2:2+keys], args[2+keys:])
	if refused, ok := is.(RedisError); ok {
		return nil, refused
	}
	return is, nil
}

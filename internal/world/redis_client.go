package world

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// RedisCall is a command, or a pipeline of commands, that a client sends.
type RedisCall struct {
	Conn     int // of the client: 0 = any of its pool
	Commands [][]string
	Replies  []any // what Redis.Execute answered, as far as it did
}

func (c *RedisCall) String() string {
	var all []string
	for _, args := range c.Commands {
		all = append(all, fmt.Sprintf("%.60q", args))
	}
	return fmt.Sprint(c.Conn, strings.Join(all, ", "))
}

// NewRedisClient makes a client that has no connection: carry brings each call to a server, and returns when it has Replies.
// After an error it is not known whether the call was executed.
func NewRedisClient(carry func(context.Context, *RedisCall) error) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: "world:6379", MaxRetries: -1, Protocol: 2, DisableIdentity: true, ContextTimeoutEnabled: true,
		DialerRetries: 1, PipelinePoolSize: -1, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("BUG: the world has no sockets")
		}})
	client.AddHook(&carrier{carry: carry})
	return client
}

// carrier is a hook of a client, and of each connection that is made of it: go-redis has each wrap its calls anew.
type carrier struct {
	carry func(context.Context, *RedisCall) error
	conns atomic.Int64 // that were made, and the pool
}

// DialHook implements redis.Hook.
func (*carrier) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (h *carrier) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	conn := int(h.conns.Add(1)) - 1
	return func(ctx context.Context, command redis.Cmder) error {
		return h.send(ctx, conn, command)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (h *carrier) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error { return h.send(ctx, 0, commands...) }
}

// send has the commands of a call executed, and gives each its answer. It returns the first error.
func (h *carrier) send(ctx context.Context, conn int, commands ...redis.Cmder) (first error) {
	c := &RedisCall{Conn: conn}
	for _, command := range commands {
		c.Commands = append(c.Commands, words(command.Args()))
	}
	failed := h.carry(ctx, c)
	for i, command := range commands {
		err := failed
		if err == nil {
			err = answer(command, c.Replies[i])
		}
		command.SetErr(err)
		if first == nil {
			first = err
		}
	}
	return first
}

// words are the words of a command as they are sent.
func words(args []any) (all []string) {
	for _, a := range args {
		switch v := a.(type) {
		case []byte:
			all = append(all, string(v))
		case bool:
			all = append(all, map[bool]string{false: "0", true: "1"}[v])
		case time.Duration:
			all = append(all, fmt.Sprint(int64(v)))
		default:
			all = append(all, fmt.Sprint(v))
		}
	}
	return all
}

// digestOf is what EVALSHA calls a script by.
func digestOf(script string) string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}

// answer gives a command its answer in the form that go-redis makes of it, and returns its error.
func answer(command redis.Cmder, is any) error {
	err, refused := is.(RedisError)
	if refused {
		return err
	}
	if text, ok := is.(status); ok {
		is = string(text)
	}
	switch c := command.(type) {
	case *redis.BoolCmd:
		n, counted := is.(int64)
		c.SetVal(is != nil && (!counted || n > 0))
		return nil
	case *redis.XStreamSliceCmd:
		if is == nil {
			return redis.Nil
		}
		var all []redis.XStream
		for _, s := range is.([]any) {
			pair := s.([]any)
			all = append(all, redis.XStream{Stream: pair[0].(string), Messages: messages(pair[1].([]any))})
		}
		c.SetVal(all)
		return nil
	}
	if is == nil {
		return redis.Nil
	}
	switch c := command.(type) {
	case interface{ SetVal(any) }: // a Cmd, or one that embeds it
		c.SetVal(is)
	case *redis.DurationCmd:
		unit := time.Millisecond
		switch n := is.(int64); {
		case n < 0:
			unit = 1
		case command.Name() == "ttl":
			unit = time.Second
		}
		c.SetVal(time.Duration(is.(int64)) * unit)
	case interface{ SetVal(string) }:
		c.SetVal(is.(string))
	case interface{ SetVal(int64) }:
		c.SetVal(is.(int64))
	case *redis.TimeCmd:
		pair := texts(is)
		c.SetVal(time.Unix(number(pair[0]), number(pair[1])*1000))
	case *redis.SliceCmd:
		c.SetVal(is.([]any))
	case *redis.StringSliceCmd:
		c.SetVal(texts(is))
	case *redis.MapStringStringCmd:
		c.SetVal(pairs(texts(is)))
	case *redis.XMessageSliceCmd:
		c.SetVal(messages(is.([]any)))
	case *redis.XInfoStreamCmd:
		fields := is.([]any)
		c.SetVal(&redis.XInfoStream{Length: fields[1].(int64), LastGeneratedID: fields[3].(string), EntriesAdded: fields[5].(int64)})
	case *redis.InfoCmd:
		c.SetVal(sections(is.(string)))
	default:
		panic(fmt.Sprintf("BUG: the stand-in for Redis does not know a %T", command))
	}
	return nil
}

func messages(of []any) (all []redis.XMessage) {
	for _, m := range of {
		pair := m.([]any)
		values := map[string]any{}
		for field, value := range pairs(texts(pair[1])) {
			values[field] = value
		}
		all = append(all, redis.XMessage{ID: pair[0].(string), Values: values})
	}
	return all
}

func texts(of any) (all []string) {
	for _, text := range of.([]any) {
		all = append(all, text.(string))
	}
	return all
}

func pairs(of []string) map[string]string {
	all := map[string]string{}
	for pair := range slices.Chunk(of, 2) {
		all[pair[0]] = pair[1]
	}
	return all
}

func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// sections are those of INFO.
func sections(text string) map[string]map[string]string {
	all, in := map[string]map[string]string{}, ""
	for line := range strings.SplitSeq(text, "\r\n") {
		name, is := strings.CutPrefix(line, "# ")
		if is {
			in, all[name] = name, map[string]string{}
		}
		if key, value, ok := strings.Cut(line, ":"); ok {
			all[in][key] = value
		}
	}
	return all
}

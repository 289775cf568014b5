package limiter_test

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"listedge/internal/sandbox/redistest"
	"listedge/internal/world"
	. "listedge/limiter"
	"listedge/limiter/lease"
)

// call is one call of a script, as Redis gets it.
type call struct {
	key     string
	command []string // EVAL, the script, 1, the key, its arguments
	beats   bool
	answer  []int64
}

// server stands for Redis: for the one server, or for the masters of a Cluster.
type server interface {
	execute(ctx context.Context, calls []*call) error // all of a pipeline
	masterOf(key string) int
}

// newLimiter makes a limiter whose Redis the server is.
func newLimiter(o Options, s server) *Limiter {
	o.Redis = &client{server: s}
	return New(o)
}

// client is a client of the server. It can do what the limiter needs of one.
type client struct {
	redis.UniversalClient
	server
}

// pipeline is a pipeline of calls.
type pipeline struct {
	redis.Pipeliner
	server
	commands []redis.Cmder
}

var masters = []*redis.Client{redis.NewClient(redistest.Options("first").Simple()), redis.NewClient(redistest.Options("second").Simple())}

func (c *client) MasterForKey(_ context.Context, key string) (*redis.Client, error) {
	return masters[c.masterOf(key)], nil
}

func (c *client) Pipeline() redis.Pipeliner { return &pipeline{server: c.server} }

func (p *pipeline) Process(_ context.Context, c redis.Cmder) error {
	p.commands = append(p.commands, c)
	return nil
}

func (p *pipeline) Exec(ctx context.Context) ([]redis.Cmder, error) {
	calls := make([]*call, len(p.commands))
	for i, c := range p.commands {
		calls[i] = callOf(c)
	}
	err := p.execute(ctx, calls)
	for i, c := range p.commands {
		c.SetErr(err)
		values := make([]any, len(calls[i].answer))
		for j, n := range calls[i].answer {
			values[j] = n
		}
		c.(interface{ SetVal(any) }).SetVal(values)
	}
	return nil, err
}

// texts are the scripts by their digests.
var texts = map[string]string{}

func init() {
	for _, text := range []string{TokenBucketText, QuotaText, HeartbeatText} {
		texts[redis.NewScript(text).Hash()] = text
	}
}

func callOf(c redis.Cmder) *call {
	a := c.Args() // EVALSHA, a digest, 1, the key, the arguments
	of := &call{key: a[3].(string), command: []string{"eval", texts[a[1].(string)], "1"}}
	of.beats = of.command[1] == HeartbeatText
	for _, word := range a[3:] {
		if packed, ok := word.([]byte); ok {
			word = string(packed)
		}
		of.command = append(of.command, fmt.Sprint(word))
	}
	return of
}

// run has a server execute a script, and returns its numbers.
func run(r *world.Redis, text, key string, arguments ...any) []int64 {
	c := callOf(redis.NewCmd(context.Background(), append([]any{"evalsha", redis.NewScript(text).Hash(), 1, key}, arguments...)...))
	c.command[1] = text
	return c.on(r)
}

// look returns what a server would answer a node that wants nothing.
func look(r *world.Redis, key string, p Policy) lease.Reply {
	return lease.ReplyOf(run(r.Fork("a look", 0), TokenBucketText, key, Pack((&lease.Call{Policy: p, Nodes: 1}).Arguments()...)))
}

func (c *call) on(r *world.Redis) (numbers []int64) {
	of := &world.RedisCall{Commands: [][]string{c.command}}
	r.Execute(of)
	all, ok := of.Replies[0].([]any)
	if !ok {
		panic(fmt.Sprint(of.Replies...))
	}
	for _, n := range all {
		numbers = append(numbers, n.(int64))
	}
	return numbers
}

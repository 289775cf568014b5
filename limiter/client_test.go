package limiter_test

import (
	"context"

	"github.com/redis/go-redis/v9"

	"listedge/internal/sandbox/redistest"
	"listedge/internal/world"
	. "listedge/limiter"
)

// call is one call of a script, as Redis gets it.
type call struct {
	key       string
	arguments any // *world.BucketCall, *world.QuotaCall or *beat
	answer    []int64
}

// beat is what a heartbeat says.
type beat struct {
	id, state    string
	parts, until int64
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
		a := c.Args()
		calls[i] = &call{key: a[3].(string), arguments: argumentsOf(a[4:])}
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

// argumentsOf tells the scripts apart by the number of their arguments.
func argumentsOf(a []any) any {
	switch len(a) {
	case 1:
		c, _ := world.UnpackBucketCall(a[0].([]byte))
		return &c
	case 4:
		return &beat{a[0].(string), a[1].(string), a[2].(int64), a[3].(int64)}
	}
	return &world.QuotaCall{Tokens: a[0].(int64), Run: a[1].(int64), Number: a[2].(int64), Floor: a[3].(int64), Need: a[4].(int64), Want: a[5].(int64),
		Nodes: a[6].(int64), Last: a[7].(int64), Life: a[8].(int64)}
}

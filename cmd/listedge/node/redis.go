package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// redisClients has a client for each use of Redis: large pages must not delay small decisions.
type redisClients struct {
	pages, limiter, log redis.UniversalClient
}

// callTimer is a hook of a Redis client that reports how long each command or pipeline took,
// the wait for a connection included.
type callTimer func(took time.Duration)

func (t callTimer) since(began time.Time) { t(time.Since(began)) }

// DialHook implements redis.Hook.
func (t callTimer) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (t callTimer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		defer t.since(time.Now())
		return next(ctx, command)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (t callTimer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		defer t.since(time.Now())
		return next(ctx, commands)
	}
}

func (c redisClients) close() {
	if c.pages != nil {
		_ = c.pages.Close()
		_ = c.limiter.Close()
		_ = c.log.Close()
	}
}

// openRedis makes clients for the URL; an empty URL makes none. Only a malformed URL is an
// error, because connections are opened when they are needed. Calls for the log of changes are
// not timed, because its reader waits in Redis for the next entry.
func openRedis(text string, dial dialer, observe func(purpose string) func(took time.Duration)) (c redisClients, err error) {
	if text == "" {
		return c, nil
	}
	o, err := ParseRedisURL(text)
	if err != nil {
		return c, fmt.Errorf("--redis-url: %w", err)
	}
	o.Dialer = dial
	c = redisClients{pages: newRedisClient(o), limiter: newRedisClient(o), log: newRedisClient(o)}
	c.pages.AddHook(callTimer(observe("pages")))
	c.limiter.AddHook(callTimer(observe("limits")))
	return c, nil
}

// newRedisClient makes a client that keeps to the deadlines of its callers. It retries nothing,
// because a script that runs twice charges a bucket twice.
func newRedisClient(o redis.UniversalOptions) redis.UniversalClient {
	o.ContextTimeoutEnabled = true
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.DialTimeout = 500 * time.Millisecond
	o.ReadTimeout, o.WriteTimeout = 250*time.Millisecond, 250*time.Millisecond
	o.PoolTimeout = 100 * time.Millisecond
	o.MinIdleConns = 1
	o.DisableIdentity = true
	// RESP2 has no push messages. With RESP3 the client takes any unread record for a
	// push. Under TLS 1.3 that is a session ticket, and the first command of a
	// connection then waits 50 ms for a push that never comes.
	o.Protocol = 2
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewUniversalClient(&o)
}

const redisHost = `(?:\[[0-9A-Za-z:.%_-]+\]|[^][:,@/?#\s]+)(?::[1-9][0-9]*)?`

// redisURL matches a --redis-url: scheme, user, password, addresses, path. An @ or a slash in a
// password must be escaped: else an address might be taken for a part of it.
var redisURL = regexp.MustCompile(`^(rediss?|redis\+sentinel)://(?:(?:([^@:/]*):)?([^@/]*)@)?(` + redisHost + `(?:,` + redisHost + `)*)(?:/([^?#@\s]*))?$`)

var errRedisURL = errors.New("it is none of redis[s]://[user:password@]host[:port][/database], redis[s]://…host[:port],host[:port] (a Cluster), " +
	"redis+sentinel://…host[:port]/master[/database]; @, / and % are written as %40, %2F and %25 in a user or password")

// ParseRedisURL reads the value of --redis-url: errRedisURL has its forms.
func ParseRedisURL(text string) (o redis.UniversalOptions, err error) {
	scheme, rest, _ := strings.Cut(text, "://")
	found := redisURL.FindStringSubmatch(scheme + "://" + strings.ReplaceAll(rest, ","+scheme+"://", ","))
	if found == nil {
		return o, errRedisURL
	}
	o.Username, err = url.PathUnescape(found[2])
	if err == nil {
		o.Password, err = url.PathUnescape(found[3])
	}
	port, path := "6379", found[5]
	switch scheme {
	case "rediss":
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	case "redis+sentinel":
		port = "26379"
		o.MasterName, path, _ = strings.Cut(path, "/")
	}
	for address := range strings.SplitSeq(found[4], ",") {
		_, number, none := net.SplitHostPort(address)
		if none != nil {
			address, number = address+":"+port, port
		}
		_, wrong := strconv.ParseUint(number, 10, 16)
		o.Addrs, err = append(o.Addrs, address), cmp.Or(err, wrong)
	}
	database, wrong := strconv.ParseUint(cmp.Or(strings.Trim(path, "/"), "0"), 10, 31)
	o.DB = int(database)
	cluster := len(o.Addrs) > 1 && o.MasterName == ""
	if cmp.Or(err, wrong) != nil || scheme == "redis+sentinel" && o.MasterName == "" || cluster && o.DB > 0 {
		return o, errRedisURL
	}
	return o, nil
}

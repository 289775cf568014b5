package node

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"net"
	"net/url"
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
func openRedis(text string, observe func(purpose string) func(took time.Duration)) (c redisClients, err error) {
	if text == "" {
		return c, nil
	}
	o, err := ParseRedisURL(text)
	if err != nil {
		return c, fmt.Errorf("--redis-url: %w", err)
	}
	c = redisClients{pages: NewRedisClient(o), limiter: NewRedisClient(o), log: NewRedisClient(o)}
	c.pages.AddHook(callTimer(observe("pages")))
	c.limiter.AddHook(callTimer(observe("limits")))
	return c, nil
}

// NewRedisClient makes a client that keeps to the deadlines of its callers. It retries nothing,
// because a script that runs twice charges a bucket twice.
func NewRedisClient(o redis.UniversalOptions) redis.UniversalClient {
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

// ParseRedisURL reads the value of --redis-url, which is one of
//
//	redis[s]://[user:password@]host[:port][,host[:port]…][/database]
//	redis+sentinel://[user:password@]host[:port][,host[:port]…]/master[/database]
func ParseRedisURL(text string) (o redis.UniversalOptions, err error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return o, fmt.Errorf("no scheme (redis://, rediss:// or redis+sentinel://)")
	}
	rest = strings.ReplaceAll(rest, ","+scheme+"://", ",")
	authority, path, _ := strings.Cut(rest, "/")
	if strings.Contains(path, "?") {
		return o, fmt.Errorf("parameters (behind a question mark) are not supported")
	}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		credentials := authority[:at]
		if _, behind, again := strings.Cut(credentials, "@"); again && strings.Contains(behind, ",") { // all addresses but the last would be part of the password
			return o, fmt.Errorf("give user and password once, before the first address; an @ in them is written as %%40, a comma as %%2C")
		}
		authority = authority[at+1:]
		user, password, both := strings.Cut(credentials, ":")
		if !both {
			user, password = "", user
		}
		if o.Username, err = url.PathUnescape(user); err == nil {
			o.Password, err = url.PathUnescape(password)
		}
		if err != nil {
			return o, fmt.Errorf("the user or the password has a %% that is not written as %%25")
		}
	}
	port := "6379"
	switch scheme {
	case "rediss":
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	case "redis+sentinel":
		port = "26379"
		o.MasterName, path, _ = strings.Cut(path, "/")
		if o.MasterName == "" {
			return o, fmt.Errorf("redis+sentinel:// needs the master's name as its path")
		}
	case "redis":
	default:
		return o, fmt.Errorf("the scheme is not redis, rediss or redis+sentinel")
	}
	for host := range strings.SplitSeq(authority, ",") {
		name, number, err := net.SplitHostPort(host)
		if err != nil {
			name, number = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), port
		}
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 || name == "" || strings.ContainsAny(name, "?#/ ") || strings.Contains(name, ":") && !strings.HasPrefix(host, "[") {
			return o, fmt.Errorf("an address is not host or host:port")
		}
		o.Addrs = append(o.Addrs, net.JoinHostPort(name, number))
	}
	if path = strings.Trim(path, "/"); path != "" {
		if o.DB, err = strconv.Atoi(path); err != nil || o.DB < 0 || o.DB > math.MaxInt32 {
			return o, fmt.Errorf("the database is not a number")
		}
		if len(o.Addrs) > 1 && o.MasterName == "" {
			return o, fmt.Errorf("a Cluster has only database 0")
		}
	}
	return o, nil
}

// ParseInfo reads the name:value lines of Redis' INFO.
func ParseInfo(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}

package edge

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/limiter"
	"listedge/metrics"
	"listedge/origin/apikey"
)

// A key that is not valid is 401, even if it also lacks the scope.
func TestARevokedKeyIsUnauthorisedWhateverItsScopes(t *testing.T) {
	hash, _ := apikey.HashOf([]byte(aKey))
	for name, k := range map[string]apikey.Key{
		"revoked, no scope":            {Revoked: true},
		"revoked, suspended workspace": {Revoked: true, Suspended: true, Scopes: 1 << listtest.Items.Number},
		"expired, no scope":            {ExpiresAt: 1},
	} {
		t.Run(name, func(t *testing.T) {
			k.Limit = apikey.DefaultLimit
			limits := limiter.New(limiter.Options{})
			defer func() { _ = limits.Close(context.Background()) }()
			ask := asking(t, New(Options{Lists: list.BuiltIn(), Limiter: limits, Metrics: metrics.New("test", "").Edge, Logger: slog.New(slog.DiscardHandler),
				Grace: time.Hour, Lookup: func(context.Context, []apikey.Hash, string) (map[apikey.Hash]apikey.Key, error) {
					return map[apikey.Hash]apikey.Key{hash: k}, nil
				}}))
			if got := ask(t, "GET", "/v1/items HTTP/1.1\r\nHost: a\r\nX-API-Key: "+aKey+"\r\n"); got.Status != 401 {
				t.Errorf("%d %s", got.Status, got.Body)
			}
		})
	}
}

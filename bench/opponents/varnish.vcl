# A plain hit: no key, no limit; everything is cached for an hour.
vcl 4.1;

backend api { .host = "{{.UpstreamHost}}"; .port = "{{.UpstreamPort}}"; }

sub vcl_recv { return (hash); }

sub vcl_backend_response {
	unset beresp.http.Cache-Control;
	set beresp.http.Vary = "Accept-Encoding";
	set beresp.ttl = 1h;
	return (deliver);
}

sub vcl_deliver {
	if (obj.hits > 0) { set resp.http.X-Cache = "HIT"; }
}

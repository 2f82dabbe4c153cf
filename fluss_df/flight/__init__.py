"""SQL over Fluss for clients of Arrow Flight SQL: ADBC, JDBC, and tools that use them.

Needs the extra ``fluss-df[flight]``.
"""

from fluss_df.flight.access import ClusterAccess, FolderAccess
from fluss_df.flight.options import FlightLimits
from fluss_df.flight.server import FlightSqlServer

__all__ = ["ClusterAccess", "FlightLimits", "FlightSqlServer", "FolderAccess"]

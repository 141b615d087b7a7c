// Of Hive's hive_metastore.thrift only the calls and fields that are used here, with their numbers; a reader of Thrift
// skips the others. The calls are those of Hive 2.3 to 4.
struct FieldSchema { 1: string name, 2: string type, 3: string comment }
struct SerDeInfo { 1: string name, 2: string serializationLib, 3: map<string, string> parameters }
struct Order { 1: string col, 2: i32 order }
struct SkewedInfo {
  1: list<string> skewedColNames, 2: list<list<string>> skewedColValues,
  3: map<list<string>, string> skewedColValueLocationMaps
}
struct StorageDescriptor {
  1: list<FieldSchema> cols, 2: string location, 3: string inputFormat, 4: string outputFormat, 5: bool compressed,
  6: i32 numBuckets, 7: SerDeInfo serdeInfo, 8: list<string> bucketCols, 9: list<Order> sortCols,
  10: map<string, string> parameters, 11: optional SkewedInfo skewedInfo, 12: optional bool storedAsSubDirectories
}
struct Table {
  1: string tableName, 2: string dbName, 3: string owner, 4: i32 createTime, 5: i32 lastAccessTime, 6: i32 retention,
  7: StorageDescriptor sd, 8: list<FieldSchema> partitionKeys, 9: map<string, string> parameters,
  10: string viewOriginalText, 11: string viewExpandedText, 12: string tableType, 15: optional bool rewriteEnabled,
  17: optional string catName, 18: optional i32 ownerType
}
struct Partition {
  1: list<string> values, 2: string dbName, 3: string tableName, 4: i32 createTime, 5: i32 lastAccessTime,
  6: StorageDescriptor sd, 7: map<string, string> parameters
}
struct Database { 1: string name, 2: string description, 3: string locationUri, 4: map<string, string> parameters }
struct GetTablesRequest { 1: required string dbName, 2: optional list<string> tblNames }
struct GetTablesResult { 1: required list<Table> tables }
struct AddPartitionsRequest {
  1: required string dbName, 2: required string tblName, 3: required list<Partition> parts,
  4: required bool ifNotExists, 5: optional bool needResult
}
struct AddPartitionsResult { 1: optional list<Partition> partitions }
struct RequestPartsSpec { 1: optional list<string> names }
struct DropPartitionsRequest {
  1: required string dbName, 2: required string tblName, 3: required RequestPartsSpec parts,
  4: optional bool deleteData, 5: optional bool ifExists, 8: optional bool needResult
}
struct DropPartitionsResult { 1: optional list<Partition> partitions }
struct EventsAfter { 1: required i64 lastEvent, 2: optional i32 maxEvents }
struct Event { 1: required i64 eventId, 4: optional string dbName, 5: optional string tableName }
struct Events { 1: required list<Event> events }
struct LastEvent { 1: required i64 eventId }
struct EnvironmentContext { 1: map<string, string> properties }
exception Refused { 1: string message }
exception AlreadyExists { 1: string message }
exception NoSuchObject { 1: string message }
exception UnknownDatabase { 1: string message }
service Metastore {
  list<string> get_all_databases() throws (1: Refused a),
  list<string> get_all_tables(1: string db_name) throws (1: Refused a),
  void create_database(1: Database database) throws (1: AlreadyExists a, 2: Refused b, 3: Refused c),
  GetTablesResult get_table_objects_by_name_req(1: GetTablesRequest req)
    throws (1: Refused a, 2: Refused b, 3: UnknownDatabase c),
  void create_table(1: Table tbl) throws (1: AlreadyExists a, 2: Refused b, 3: Refused c, 4: NoSuchObject d),
  void alter_table_with_environment_context(
    1: string dbname, 2: string tbl_name, 3: Table new_tbl, 4: EnvironmentContext environment_context)
    throws (1: Refused a, 2: Refused b),
  list<Partition> get_partitions(1: string db_name, 2: string tbl_name, 3: i16 max_parts)
    throws (1: NoSuchObject a, 2: Refused b),
  list<Partition> get_partitions_by_names(1: string db_name, 2: string tbl_name, 3: list<string> names)
    throws (1: Refused a, 2: NoSuchObject b),
  AddPartitionsResult add_partitions_req(1: AddPartitionsRequest request)
    throws (1: Refused a, 2: AlreadyExists b, 3: Refused c),
  void alter_partitions(1: string db_name, 2: string tbl_name, 3: list<Partition> new_parts)
    throws (1: Refused a, 2: Refused b),
  DropPartitionsResult drop_partitions_req(1: DropPartitionsRequest req) throws (1: NoSuchObject a, 2: Refused b),
  Events get_next_notification(1: EventsAfter rqst),
  LastEvent get_current_notificationEventId()
}

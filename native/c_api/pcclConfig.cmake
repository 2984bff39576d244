# find_package(pccl), then target_link_libraries(program PRIVATE pccl::pccl), or pccl as PCCL's users write.
get_filename_component(_pccl_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET pccl::pccl)
  add_library(pccl::pccl SHARED IMPORTED)
  set_target_properties(pccl::pccl PROPERTIES
      IMPORTED_LOCATION "${_pccl_prefix}/lib/libpccl.so"
      IMPORTED_SONAME libpccl.so
      INTERFACE_INCLUDE_DIRECTORIES "${_pccl_prefix}/include")
endif()
if(NOT TARGET pccl)
  add_library(pccl INTERFACE IMPORTED)
  set_target_properties(pccl PROPERTIES INTERFACE_LINK_LIBRARIES pccl::pccl)
endif()
unset(_pccl_prefix)
